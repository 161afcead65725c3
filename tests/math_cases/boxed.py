"""What the tables of cases are written with."""

from __future__ import annotations

Cases = dict[str, list[tuple[str, str, bool]]]
"""By kind: the gold answer, the completion, and whether it must be judged right."""


def B(answer: str) -> str:
    """An answer boxed in a sentence."""
    return f"Adding up, we find $\\boxed{{{answer}}}$."
