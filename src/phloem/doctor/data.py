"""The examples of a task: how many, empty, repeated, on both sides of the split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from phloem.doctor.findings import Finding, fail, ok, some, warn
from phloem.tasks.task import Example, Task, prompt_key

__all__ = ["of_data"]


def of_data(task: Task) -> Iterator[Finding]:
    """What the rows are like, before anything is scored."""
    yield ok("data", f"{len(task.train):,} training and {len(task.held_out):,} held-out examples")
    yield from (warn("data", note) for note in getattr(task, "notes", ()))
    everything = [*task.train, *task.held_out]
    yield from _empty(everything)
    yield from _repeated(task.train, "training")
    yield from _repeated(task.held_out, "held-out")
    yield from _shared(task)


def _empty(examples: Sequence[Example]) -> Iterator[Finding]:
    for what, bare in (("prompt", _has_no_prompt), ("answer", _has_no_answer)):
        found = [example.id for example in examples if bare(example)]
        if found:
            remedy = "remove them (data: task.args.unusable drop leaves them out)"
            yield fail("data", f"{len(found)} rows have an empty {what}", remedy, some(found))


def _has_no_prompt(example: Example) -> bool:
    last = example.prompt if isinstance(example.prompt, str) else example.prompt[-1]["content"]
    return not last.strip()


def _has_no_answer(example: Example) -> bool:
    answer = example.answer
    return answer is None or answer in ([], {}) or (isinstance(answer, str) and not answer.strip())


def _repeated(examples: Sequence[Example], side: str) -> Iterator[Finding]:
    same: dict[Any, list[Example]] = defaultdict(list)
    for example in examples:
        same[prompt_key(example.prompt)].append(example)
    groups = [group for group in same.values() if len(group) > 1]
    torn = [group for group in groups if len({repr(example.answer) for example in group}) > 1]
    if torn:
        yield warn(
            "data",
            f"{len(torn)} {side} prompts stand in several rows with different answers",
            "keep one row of each; a right completion of one is wrong for the other",
            some([_listed(group) for group in torn]),
        )
    if whole := [group for group in groups if group not in torn]:
        extra = sum(len(group) - 1 for group in whole)
        yield warn(
            "data",
            f"{extra} {side} rows repeat the prompt and answer of another",
            "remove them, unless these prompts are to count more",
            some([_listed(group) for group in whole]),
        )
    if not groups:
        yield ok("data", f"no {side} prompt stands in two rows")


def _listed(group: Sequence[Example]) -> str:
    return ", ".join(example.id for example in group)


def _shared(task: Task) -> Iterator[Finding]:
    held = {prompt_key(example.prompt) for example in task.held_out}
    both = [example.id for example in task.train if prompt_key(example.prompt) in held]
    if both:
        yield fail(
            "data",
            f"{len(both)} training rows have a prompt that is held out: the evaluation would measure memory",
            "take them out of either side",
            some(both),
        )
    elif held:
        yield ok("data", "no training prompt is held out")
