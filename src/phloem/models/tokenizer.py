"""What a tokenizer is asked once: which ids end a completion, whether it writes a BOS, whether it fits the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phloem.models.errors import ModelError

__all__ = ["chat_end_id", "check_ids", "check_tokenizer", "eos_ids", "writes_bos"]

_PROBE = "phloem"


def _as_ids(value: int | Iterable[int] | None) -> set[int]:
    if value is None:
        return set()
    return {int(value)} if isinstance(value, int) else {int(v) for v in value}


def chat_end_id(tokenizer: Any) -> int | None:
    """The special token the chat template writes after an assistant's message (`<|im_end|>`, `<end_of_turn>`, ...).

    Found by rendering one exchange, so no list of names has to be kept. None: no template, or one that ends the
    message with ordinary text.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    exchange = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _PROBE}]
    rendered: str = tokenizer.apply_chat_template(exchange, tokenize=False)
    _, found, rest = rendered.rpartition(_PROBE)
    after: list[int] = tokenizer(rest.lstrip(), add_special_tokens=False).input_ids if found else []
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return after[0] if after and after[0] in special else None


def eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a completion, ascending.

    The union of what the generation config, the model config, the tokenizer and the chat template declare: models
    disagree about which of them is complete, and an id left out makes finished completions look truncated.

    Raises:
        ModelError: nothing declares one.
    """
    ids = _as_ids(tokenizer.eos_token_id) | _as_ids(chat_end_id(tokenizer))
    for holder in (model.config, getattr(model, "generation_config", None)):
        ids |= _as_ids(getattr(holder, "eos_token_id", None))
    if not ids:
        raise ModelError(
            "neither the model nor its tokenizer declares an end-of-sequence id: set `eos_token_id` in "
            "generation_config.json, or no completion could ever end by itself"
        )
    return tuple(sorted(ids))


def writes_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer puts a BOS before plain text by itself."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return False
    bare = tokenizer(_PROBE, add_special_tokens=False).input_ids
    dressed = tokenizer(_PROBE, add_special_tokens=True).input_ids
    return dressed[:1] == [bos] and bare[:1] != [bos]


def check_ids(tokenizer: Any, ends: Iterable[int], rows: int) -> None:
    """Makes sure that every id the tokenizer can write, and every id that ends a completion, is one of `rows`.

    Raises:
        ModelError: a vocabulary larger than the embeddings, or an end outside them.
    """
    largest = max(tokenizer.get_vocab().values())
    if largest >= rows:
        raise ModelError(
            f"the tokenizer writes ids up to {largest} and the model embeds {rows}: they do not belong together. "
            "Use the tokenizer saved with the model, or call model.resize_token_embeddings and save both"
        )
    out_of_range = [i for i in ends if i >= rows]
    if out_of_range:
        raise ModelError(f"end-of-sequence ids {out_of_range} lie outside the model's {rows} embeddings")


def check_tokenizer(model: Any, tokenizer: Any) -> None:
    """Makes sure that every id the tokenizer can write has an embedding, and that there is a padding token.

    Padding is never trained on or attended to here; it is set to the EOS where it is missing because a saved model
    without one cannot be batched by other programs.

    Raises:
        ModelError: a vocabulary larger than the embeddings, or no EOS.
    """
    check_ids(tokenizer, eos_ids(model, tokenizer), model.get_input_embeddings().num_embeddings)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ModelError("the tokenizer has neither a padding nor an end-of-sequence token: set `eos_token`")
        tokenizer.pad_token = tokenizer.eos_token
