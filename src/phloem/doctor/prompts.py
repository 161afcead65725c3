"""The prompts as the model reads them: template, BOS, ends, special tokens in the data, the closing tag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from phloem.config import TaskConfig, TrainConfig
from phloem.doctor.findings import Finding, ok, some, warn
from phloem.models import decode_raw, encode_prompt, eos_ids
from phloem.models.load import Declared
from phloem.models.tokenizer import chat_end_id, writes_bos
from phloem.tasks.task import Example, Prompt, Task

__all__ = ["of_prompts", "prompt_ids", "rendered"]


def prompt_ids(tokenizer: Any, example: Example, task: TaskConfig) -> np.ndarray:
    """An example's prompt as a run encodes it."""
    return encode_prompt(tokenizer, example.prompt, task.system_prompt, task.chat_template, task.chat_template_args)


def rendered(tokenizer: Any, example: Example, task: TaskConfig) -> str:
    """An example's prompt as the model reads it, special tokens shown."""
    return decode_raw(tokenizer, prompt_ids(tokenizer, example, task))


def of_prompts(tokenizer: Any, declared: Declared, task: Task | None, config: TrainConfig) -> Iterator[Finding]:
    """What begins and ends a row, and what of it the data or the settings spoil.

    Raises ModelError: a template that refuses a prompt.
    """
    if task is not None:
        yield _of_bos(tokenizer, task.train[0], config.task)
    yield _of_ends(tokenizer, declared, config.task.chat_template)
    if task is not None:
        yield from _of_marks(tokenizer, [*task.train, *task.held_out], config.task.chat_template)
        for level in config.sample.levels[:-1]:
            if level.until is not None:
                yield from _of_fork(tokenizer, task, config, level.until)


def _of_bos(tokenizer: Any, example: Example, task: TaskConfig) -> Finding:
    ids = prompt_ids(tokenizer, example, task)
    bos = tokenizer.bos_token_id
    count = 0 if bos is None else int((ids == bos).sum())
    written = "chat template" if task.chat_template else "plain text"
    if not count:
        return ok("prompts", f"{written}; no BOS: neither it nor the tokenizer writes one")
    name = f"{tokenizer.bos_token} ({bos})"
    if count > 1:
        why = "the text holds it too" if tokenizer.bos_token in _text(example.prompt) else "it opens every message"
        return ok("prompts", f"{written}; BOS {name} {count} times: {why}")
    if not task.chat_template:
        return ok("prompts", f"{written}; one BOS {name}")
    twice = writes_bos(tokenizer) and _template_writes_bos(tokenizer)
    more = "; the tokenizer would add a second one, which is kept out" if twice else ""
    return ok("prompts", f"{written}; one BOS {name}{more}")


def _template_writes_bos(tokenizer: Any) -> bool:
    text: str = tokenizer.apply_chat_template([{"role": "user", "content": "-"}], tokenize=False)
    return text.startswith(tokenizer.bos_token)


def _of_ends(tokenizer: Any, declared: Declared, chat_template: bool) -> Finding:
    ends = ", ".join(f"{tokenizer.convert_ids_to_tokens(i)} ({i})" for i in eos_ids(declared, tokenizer))
    closing = chat_end_id(tokenizer) if chat_template else None
    if closing is None and chat_template:
        return warn(
            "prompts",
            f"completions end with {ends}; the chat template closes a message with none of them",
            f"demonstrations are closed by {tokenizer.eos_token}; see whether the model was trained so",
        )
    name = tokenizer.eos_token if closing is None else tokenizer.convert_ids_to_tokens(closing)
    return ok("prompts", f"completions end with {ends}; demonstrations are closed by {name}")


def _of_marks(tokenizer: Any, examples: Sequence[Example], chat_template: bool) -> Iterator[Finding]:
    """Special tokens that stand in the data: a prompt that went through a template before, or a second BOS."""
    marks = [str(token) for token in tokenizer.all_special_tokens]
    if not chat_template:  # such prompts may have been put through a template on purpose
        marks = [tokenizer.bos_token] if tokenizer.bos_token else []
    found: dict[str, list[str]] = {}
    for example in examples:
        text = _text(example.prompt)
        if not chat_template and marks:
            text = text.lstrip().removeprefix(marks[0])
        for mark in marks:
            if mark in text:
                found.setdefault(mark, []).append(example.id)
    if found:
        rows = list(dict.fromkeys(row for listed in found.values() for row in listed))
        remedy = (
            "give the bare text: the chat template is put around it here; or set task.chat_template to false"
            if chat_template
            else "remove it: a row has one BOS, at its start"
        )
        said = f"{len(rows)} prompts hold special tokens as text: {', '.join(found)}"
        yield warn("prompts", said, remedy, some(rows))


def _text(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)


def _of_fork(tokenizer: Any, task: Task, config: TrainConfig, tag: str) -> Iterator[Finding]:
    """Whether anything tells the policy about the text that closes a thought."""
    setting = "sample.forks" if config.sample.forks else "sample.fork_at"
    shown = [text for example in task.train for text in example.demonstrations]
    without = sum(tag not in text for text in shown)
    if without:
        yield warn(
            "prompts",
            f"{without} of {len(shown)} demonstrations lack {setting} {tag!r}: such thoughts have no answers",
            f"write it into them, or set {setting} to what closes their thoughts",
        )
    told = (rendered(tokenizer, task.train[0], config.task), tokenizer.chat_template or "")
    opening = tag.replace("</", "<")
    if opening != tag and told[0].rstrip().endswith(opening) and not config.task.opening:
        yield warn(
            "prompts",
            f"the chat template already writes {opening!r}, so completions start inside the thought",
            f"set task.opening to {opening!r}: rewards then see the whole thought, demonstrations leave the tag out",
        )
    if not shown and not any(word in text for word in (tag, opening) for text in told):
        yield warn(
            "prompts",
            f"neither the prompt nor a demonstration shows {setting} {tag!r}; a thought that never writes it has "
            "no answers",
            "ask for it (task.system_prompt or task.args.instruction), unless the model writes it by itself",
        )
