"""Rewards on length: a hard budget and DAPO's soft one.

Lengths are counted on the text a reward is given: in characters, in words, or by a function of yours (a tokenizer's
`lambda text: len(tokenizer(text).input_ids)` comes close to the number of sampled tokens; the trainer, which knows that
number, uses `overlong_penalty` itself).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phloem.rewards.verdict import RewardError, Verdict

__all__ = ["Overlong", "WithinBudget", "overlong_penalty"]

Unit = str | Callable[[str], int]


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """Soft overlong punishment of DAPO (arXiv 2503.14476, equation 13): a number in [-1, 0] to add to the reward.

    0 up to `limit - buffer`, then falling linearly to -1 at `limit`, and -1 beyond. `length` and both bounds are in the
    same unit, tokens in the paper (limit 20,480, buffer 4,096 there). Raises RewardError unless 0 < buffer <= limit.
    """
    if not 0 < buffer <= limit:
        raise RewardError(f"buffer is {buffer} and limit {limit}; need 0 < buffer <= limit")
    return max(-1.0, min(0.0, (limit - buffer - length) / buffer))


def _measure(text: str, unit: Unit) -> int:
    if callable(unit):
        return unit(text)
    return len(text) if unit == "characters" else len(text.split())


def _check(limit: int, unit: Unit) -> None:
    if limit < 1:
        raise RewardError(f"limit is {limit}; it must be at least 1")
    if not callable(unit) and unit not in ("characters", "words"):
        raise RewardError(f"unit is {unit!r}; it must be 'characters', 'words' or a function of the text")


@dataclass(frozen=True)
class WithinBudget:
    """Reward 1 for completions of at most `limit` units, else 0."""

    limit: int
    unit: Unit = "characters"

    def __post_init__(self) -> None:
        _check(self.limit, self.unit)

    def __call__(self, completion: str, answer: Any = None, row: Mapping[str, Any] | None = None) -> Verdict:
        length = _measure(completion, self.unit)
        make = Verdict.right if length <= self.limit else Verdict.wrong
        return make(detail=f"length {length}, limit {self.limit}")


@dataclass(frozen=True)
class Overlong:
    """`overlong_penalty` as a reward, to be a part of a `WeightedSum`: 0 (RIGHT) where the length is fine, else < 0."""

    limit: int
    buffer: int
    unit: Unit = "characters"

    def __post_init__(self) -> None:
        _check(self.limit, self.unit)
        overlong_penalty(0, self.limit, self.buffer)

    def __call__(self, completion: str, answer: Any = None, row: Mapping[str, Any] | None = None) -> Verdict:
        length = _measure(completion, self.unit)
        penalty = overlong_penalty(length, self.limit, self.buffer)
        make = Verdict.wrong if penalty < 0 else Verdict.right
        return make(reward=penalty, detail=f"length {length}, limit {self.limit}, buffer {self.buffer}")
