"""One function each way between text and ids, with exactly one BOS (A30) and one type of prompt (C03)."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_tokenizers import DEEPSEEK, GEMMA, LLAMA, QWEN, byte_level, sentence_piece

from phloem.models import ModelError, decode_completion, encode_completion, encode_prompt
from phloem.models.tokenizer import chat_end_id

WRITES_BOS = {"llama": LLAMA, "gemma": GEMMA, "deepseek": DEEPSEEK}


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("template", WRITES_BOS)
def test_a_template_that_writes_bos_gives_exactly_one(make, adds_bos, template):
    tokenizer = make(WRITES_BOS[template], adds_bos)
    ids = encode_prompt(tokenizer, "what is 2 + 3?")
    assert ids.dtype == np.int64
    assert ids[0] == tokenizer.bos_token_id
    assert list(ids).count(tokenizer.bos_token_id) == 1
    assert list(ids) == list(encode_prompt(make(WRITES_BOS[template], not adds_bos), "what is 2 + 3?"))


def test_a_template_without_bos_follows_the_tokenizer():
    bos = byte_level().bos_token_id
    assert list(encode_prompt(byte_level(QWEN, adds_bos=True), "hi")).count(bos) == 1
    assert list(encode_prompt(byte_level(QWEN, adds_bos=False), "hi")).count(bos) == 0


def test_plain_text_follows_the_tokenizer():
    assert encode_prompt(byte_level(None, adds_bos=True), "hi", chat_template=False)[0] == 0
    assert list(encode_prompt(byte_level(None, adds_bos=False), "hi", chat_template=False)) == list(
        byte_level()("hi", add_special_tokens=False).input_ids
    )
    twice = encode_prompt(byte_level(None, adds_bos=True), "<s>hi", chat_template=False)
    assert list(twice).count(0) == 1


def test_a_bos_that_opens_every_message_is_left_alone():
    """SmolLM2's BOS is <|im_start|>."""
    tokenizer = byte_level(QWEN, bos="<|start|>")
    ids = list(encode_prompt(tokenizer, "hi", system_prompt="be brief"))
    assert ids.count(tokenizer.bos_token_id) == 3
    rendered = tokenizer.apply_chat_template(
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert ids == tokenizer(rendered, add_special_tokens=False).input_ids


@pytest.mark.parametrize("system", [None, "be brief"])
@pytest.mark.parametrize("chat_template", [True, False])
def test_text_and_messages_give_the_same_ids(system, chat_template):
    tokenizer = byte_level(LLAMA, adds_bos=True)
    text = encode_prompt(tokenizer, "2 + 3?", system, chat_template)
    messages = encode_prompt(tokenizer, [{"role": "user", "content": "2 + 3?"}], system, chat_template)
    assert list(text) == list(messages)
    assert ("be brief" in tokenizer.decode(text)) == (system is not None)


def test_template_arguments_reach_the_template():
    tokenizer = byte_level(QWEN + "{% if thinking %}<think>{% endif %}")
    assert tokenizer.decode(encode_prompt(tokenizer, "hi", template_args={"thinking": True})).endswith("<think>")


def test_what_cannot_be_rendered_names_the_remedy():
    user = {"role": "user", "content": "hi"}
    with pytest.raises(ModelError, match="no chat template"):
        encode_prompt(byte_level(), "hi")
    with pytest.raises(ModelError, match=r"task\.system_prompt unset"):
        encode_prompt(byte_level(GEMMA), "hi", system_prompt="be brief")
    with pytest.raises(ModelError, match="drop one of the two"):
        encode_prompt(byte_level(LLAMA), [{"role": "system", "content": "x"}, user], system_prompt="be brief")
    with pytest.raises(ModelError, match="need a chat template"):
        encode_prompt(byte_level(), [user, {"role": "assistant", "content": "x"}], chat_template=False)
    with pytest.raises(ModelError, match="text `content`"):
        encode_prompt(byte_level(LLAMA), [{"role": "user", "content": ["hi"]}])
    with pytest.raises(ModelError, match="no messages"):
        encode_prompt(byte_level(LLAMA), [])
    with pytest.raises(ModelError, match="no BOS"):
        encode_prompt(byte_level(bos=None), "", chat_template=False)


def test_an_empty_plain_prompt_is_a_bos():
    assert list(encode_prompt(byte_level(), "", chat_template=False)) == [0]


def test_completions_lose_the_final_eos_only():
    tokenizer = byte_level(LLAMA)
    think = tokenizer("<think>a</think>", add_special_tokens=False).input_ids
    eos, eot = 1, 3
    assert decode_completion(tokenizer, [*think, eos], (eos, eot)) == "<think>a</think>"
    assert decode_completion(tokenizer, np.array([*think, eot]), (eos, eot)) == "<think>a</think>"
    assert decode_completion(tokenizer, [*think, eos, eot], (eos, eot)) == "<think>a</think></s>"
    assert decode_completion(tokenizer, think, (eos, eot)) == "<think>a</think>"
    assert decode_completion(tokenizer, [], (eos,)) == ""


@pytest.mark.parametrize(
    ("template", "end"), [(LLAMA, "<|eot|>"), (GEMMA, "<|eot|>"), (DEEPSEEK, "</s>"), (QWEN, "<|eot|>")]
)
def test_demonstrations_end_as_the_template_ends_a_message(template, end):
    tokenizer = byte_level(template)
    assert chat_end_id(tokenizer) == tokenizer.convert_tokens_to_ids(end)
    assert encode_completion(tokenizer, "5")[-1] == tokenizer.convert_tokens_to_ids(end)
    assert encode_completion(tokenizer, "5", chat_template=False)[-1] == tokenizer.eos_token_id


def test_no_template_no_chat_end():
    assert chat_end_id(byte_level()) is None
    assert chat_end_id(byte_level("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")) is None
