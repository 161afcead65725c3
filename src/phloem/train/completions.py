"""A few completions of each evaluation, to be read: completions/STEP.md in the run folder, and the trackers' tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phloem.rewards.verdict import Verdict
from phloem.tree import Group

__all__ = ["Row", "as_code", "as_markdown", "completion_rows"]

Row = tuple[str, str, float | None, str]
"""Prompt, completion, reward, verdict."""


def completion_rows(
    groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]], decode: Callable[..., str], count: int
) -> list[Row]:
    """(prompt, completion, reward, verdict) of the first rollout of each of the first `count` groups."""
    return [
        (decode(group.prompt), decode(group.completion(0)), own[0].reward, str(own[0].status))
        for group, own in zip(groups[:count], verdicts[:count], strict=True)
    ]


def as_markdown(title: str, rows: Sequence[Row]) -> str:
    """A page with the rows one after the other, texts as they are."""
    parts = [f"# {title}"]
    for number, (prompt, completion, reward, verdict) in enumerate(rows, start=1):
        said = "not scored" if reward is None else f"reward {reward:g}"
        parts += [f"## {number}: {verdict}, {said}", "Prompt", as_code(prompt), "Completion", as_code(completion)]
    return "\n\n".join(parts) + "\n"


def as_code(text: str) -> str:
    """Text as Markdown shows it unchanged."""
    return "\n".join(f"    {line}" for line in text.split("\n"))
