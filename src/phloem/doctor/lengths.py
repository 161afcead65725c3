"""Lengths in tokens against the budgets of `sample` and the model's context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from phloem.config import SampleConfig, TrainConfig
from phloem.doctor.findings import Finding, fail, ok, some, warn
from phloem.doctor.prompts import prompt_ids
from phloem.models.load import Declared
from phloem.tasks.task import ExampleTask, Task

__all__ = ["of_lengths"]


def of_lengths(tokenizer: Any, declared: Declared, task: Task, config: TrainConfig) -> Iterator[Finding]:
    """Prompts against the context; demonstrations and golds against the budgets.

    Raises ModelError: a template that refuses a prompt.
    """
    yield _of_prompts(tokenizer, declared, task, config)
    sample = config.sample
    shown = [text for example in task.train for text in example.demonstrations]
    whole = bool(sample.forks) or sample.answers == 1
    if shown and whole:
        yield _of_answers(tokenizer, shown, "demonstrations", sample)
    elif shown:
        parts = [_parted(text, sample.fork_at) for text in shown]
        yield _of_thoughts(tokenizer, [thought for thought, _ in parts], sample)
        yield _of_answers(tokenizer, [answer for _, answer in parts], "answers of demonstrations", sample)
    elif isinstance(task, ExampleTask):
        golds = [task.gold_completion(example) for example in (*task.train, *task.held_out)]
        golds = golds if whole else [_parted(text, sample.fork_at)[1] for text in golds]
        yield _of_answers(tokenizer, golds, "gold answers in their tags", sample)


def _parted(text: str, fork_at: str) -> tuple[str, str]:
    """A completion up to the end of its closing tag, and the rest; all of it is rest where there is no tag."""
    before, tag, after = text.partition(fork_at)
    return (before + tag, after) if tag else ("", text)


def _of_prompts(tokenizer: Any, declared: Declared, task: Task, config: TrainConfig) -> Finding:
    examples = [*task.train, *task.held_out]
    lengths = np.array([len(prompt_ids(tokenizer, example, config.task)) for example in examples])
    said = f"prompts: {_spread(lengths)} tokens"
    if declared.context is None:
        return ok("lengths", f"{said}; the model names no limit")
    room = min(
        declared.context - config.sample.max_completion_tokens, config.task.max_prompt_tokens or declared.context
    )
    over = [f"{e.id}: {n} tokens" for e, n in zip(examples, lengths, strict=True) if n > room]
    said += f"; beside completions of {config.sample.max_completion_tokens} there is room for {room:,}"
    if not over:
        return ok("lengths", said)
    if config.task.long_prompts == "drop":
        return warn("lengths", f"{said}, and {len(over)} prompts are longer", "a run leaves them out", some(over))
    remedy = (
        "set task.long_prompts to drop, or remove them (data: task.args.max_prompt_characters): the model reads "
        f"{declared.context:,} tokens in all"
    )
    return fail("lengths", f"{said}, and {len(over)} prompts are longer", remedy, some(over))


def _of_thoughts(tokenizer: Any, texts: Sequence[str], sample: SampleConfig) -> Finding:
    lengths = _tokens(tokenizer, texts)
    return _against(lengths, sample.thought_tokens, "thoughts of demonstrations", "sample.thought_tokens")


def _of_answers(tokenizer: Any, texts: Sequence[str], what: str, sample: SampleConfig) -> Finding:
    """Texts and the token that ends them against the budget of an answer, or of a plain rollout."""
    lengths = _tokens(tokenizer, texts) + 1
    if sample.forks:
        return _against(lengths, sample.max_completion_tokens, what, "the budgets of sample.forks together")
    if sample.answers == 1:
        return _against(lengths, sample.max_completion_tokens, what, "sample.thought_tokens + sample.answer_tokens")
    return _against(lengths, sample.answer_tokens, what, "sample.answer_tokens")


def _tokens(tokenizer: Any, texts: Sequence[str]) -> np.ndarray:
    return np.array([len(ids) for ids in tokenizer(list(texts), add_special_tokens=False).input_ids])


def _against(lengths: np.ndarray, budget: int, what: str, setting: str) -> Finding:
    said = f"{what}: {_spread(lengths)} of {budget} tokens"
    share = float((lengths > budget).mean())
    if not share:
        return ok("lengths", said)
    return warn("lengths", f"{said}; {share:.1%} are over {setting}", f"raise {setting}: what is cut off earns nothing")


def _spread(lengths: np.ndarray) -> str:
    middle, high = np.percentile(lengths, [50, 95])
    return f"median {middle:.0f}, 95 % up to {high:.0f}, longest {lengths.max()}"
