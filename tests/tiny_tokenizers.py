"""Small tokenizers made in memory: byte-level and SentencePiece-like, with the chat templates of several families."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}\n\n{{ m['content'] }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|eot|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>model\n{% endif %}"
)
DEEPSEEK = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}"
    "{% for m in messages %}{% if m['role'] == 'user' %}User: {{ m['content'] }}\n\n"
    "{% elif m['role'] == 'system' %}{{ m['content'] }}\n\n"
    "{% else %}Assistant: {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
QWEN = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|eot|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

MERGES = [("<", "/"), ("a", "n"), (">", "Ċ"), (">", "<"), ("Ġ", "<"), ("x", "</")]
SPECIAL = ["<s>", "</s>", "<|start|>", "<|eot|>"]


def byte_level(
    chat_template: str | None = None, adds_bos: bool = False, bos: str | None = "<s>", alphabet: str | None = None
) -> PreTrainedTokenizerFast:
    """Bytes, a few merges (some of which straddle a closing tag) and four special tokens.

    `alphabet` leaves only these characters, for a vocabulary small enough to meet each of its tokens often.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet)
    merges = [(a, b) for a, b in MERGES if set(a + b) <= set(letters)]
    vocabulary = {piece: i for i, piece in enumerate([*SPECIAL, *letters, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrapped(tokenizer, chat_template, adds_bos, bos)


def sentence_piece(chat_template: str | None = None, adds_bos: bool = True) -> PreTrainedTokenizerFast:
    """Whole characters with byte fallback and `\u2581` for spaces, as Llama 2 and Gemma have it."""
    pieces = [*SPECIAL, "<unk>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581", *map(chr, range(33, 127)), "</", "k>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=[("<", "/"), ("k", ">")], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _wrapped(tokenizer, chat_template, adds_bos, "<s>")


def _wrapped(tokenizer: Tokenizer, template: str | None, adds_bos: bool, bos: str | None) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIAL])
    if adds_bos:
        ids = [("<s>", tokenizer.token_to_id("<s>"))]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=ids)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token=bos)
    wrapped.chat_template = template
    return wrapped
