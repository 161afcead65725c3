"""From a task's prompt to token ids and back to text.

The same ids on every path (training, sampling, evaluation, demonstrations) because there is one function for each
direction. A prompt starts with exactly one BOS where the model's template or tokenizer knows one, never two: the
template's text is encoded without the tokenizer's own additions, and the BOS is put in front only where it is
missing. Only the start is looked at, since some models (SmolLM2) use the BOS token to open every message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jinja2.exceptions import TemplateError

from phloem.models.errors import ModelError
from phloem.models.tokenizer import chat_end_id, writes_bos

__all__ = ["decode_completion", "decode_raw", "encode_completion", "encode_prompt"]

Prompt = str | Sequence[Mapping[str, str]]


def _messages(prompt: Prompt, system_prompt: str | None) -> list[dict[str, str]]:
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
    else:
        messages = [dict(message) for message in prompt]
    for message in messages:
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise ModelError(f"a message needs a text `role` and a text `content`, got {message!r}")
    if not messages:
        raise ModelError("the prompt has no messages")
    if system_prompt is None:
        return messages
    if messages[0]["role"] == "system":
        raise ModelError("the prompt brings a system message and task.system_prompt is set: drop one of the two")
    return [{"role": "system", "content": system_prompt}, *messages]


def _templated(tokenizer: Any, messages: list[dict[str, str]], template_args: Mapping[str, Any]) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            "the tokenizer has no chat template: set task.chat_template to false, or use an instruction-tuned model"
        )
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **template_args)
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ModelError(
            f"the chat template refuses messages with the roles {roles} ({error}): models without a system role "
            "need task.system_prompt unset and its text in the prompt"
        ) from error


def _plain(messages: list[dict[str, str]]) -> str:
    roles = [message["role"] for message in messages]
    if roles not in (["user"], ["system", "user"]):
        raise ModelError(
            f"messages with the roles {', '.join(roles)} need a chat template: set task.chat_template to true"
        )
    return "\n\n".join(message["content"] for message in messages)


def encode_prompt(
    tokenizer: Any,
    prompt: Prompt,
    system_prompt: str | None = None,
    chat_template: bool = True,
    template_args: Mapping[str, Any] | None = None,
) -> np.ndarray:
    """Token ids of a prompt, int64 of shape (P,), P >= 1, up to where the completion starts.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt: a string, or messages `{"role": ..., "content": ...}`; a string and the one user message with that
            content give the same ids.
        system_prompt: put in front as a system message.
        chat_template: render with the tokenizer's template; False: the text as it stands (a system prompt comes
            before it, separated by a blank line).
        template_args: further variables of the template, for example `{"enable_thinking": False}`.

    Raises:
        ModelError: no template, a template that refuses the messages, an empty prompt for a model without a BOS.
    """
    messages = _messages(prompt, system_prompt)
    text = _templated(tokenizer, messages, template_args or {}) if chat_template else _plain(messages)
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    bos = tokenizer.bos_token_id
    if bos is not None:
        start = 0
        while start < len(ids) and ids[start] == bos:
            start += 1
        if start or not ids or writes_bos(tokenizer):
            ids = [bos, *ids[start:]]
    if not ids:
        raise ModelError("the prompt is empty and the tokenizer has no BOS: nothing would predict the first token")
    return np.asarray(ids, dtype=np.int64)


def encode_completion(tokenizer: Any, text: str, chat_template: bool = True) -> np.ndarray:
    """Token ids of a demonstration, int64 of shape (n,), closed by the id that ends an assistant's message.

    For supervised steps only: what the policy sampled is never encoded again.

    Raises:
        ModelError: the tokenizer has no EOS.
    """
    end = chat_end_id(tokenizer) if chat_template else None
    end = tokenizer.eos_token_id if end is None else end
    if end is None:
        raise ModelError("the tokenizer has no end-of-sequence token: set `eos_token`")
    return np.asarray([*tokenizer(text, add_special_tokens=False).input_ids, end], dtype=np.int64)


def decode_completion(tokenizer: Any, ids: Sequence[int] | np.ndarray, eos_ids: Collection[int]) -> str:
    """The text of a completion as rewards see it: without the EOS that ends it, special tokens such as tags kept."""
    ended = len(ids) > 0 and int(ids[-1]) in eos_ids
    return decode_raw(tokenizer, ids[:-1] if ended else ids)


def decode_raw(tokenizer: Any, ids: Sequence[int] | np.ndarray) -> str:
    """Token ids as text, special tokens shown."""
    return str(tokenizer.decode(list(map(int, ids)), skip_special_tokens=False, clean_up_tokenization_spaces=False))
