"""Rewards by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.rewards.boxes import BoxOverlap, PointDistance
from phloem.rewards.compose import BatchReward, Reward
from phloem.rewards.custom import load
from phloem.rewards.format import Format
from phloem.rewards.length import Overlong, WithinBudget
from phloem.rewards.simple import Choice, Exact, Number
from phloem.rewards.verdict import RewardError, Verdict

__all__ = ["REWARDS", "Code", "Maths", "get"]

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Maths:
    """`phloem.rewards.math.verify` as a reward: the final answer is the gold answer, mathematically."""

    def score_batch(self, completions: Sequence[str], answers: Sequence[Any], rows: Sequence[Row]) -> list[Verdict]:
        from phloem.rewards.math import verify_many

        return verify_many(completions, ["" if answer is None else str(answer) for answer in answers])


@dataclass(frozen=True)
class Code:
    """`phloem.rewards.code.verify` as a reward: the code passes the tests; with `partial`, the share of them."""

    partial: bool = False

    def score_batch(self, completions: Sequence[str], answers: Sequence[Any], rows: Sequence[Row]) -> list[Verdict]:
        from phloem.rewards.code import verify_many

        return verify_many(completions=completions, answers=answers, partial=self.partial)


REWARDS: dict[str, Callable[..., Reward | BatchReward]] = {
    "exact": Exact,
    "number": Number,
    "choice": Choice,
    "format": Format,
    "math": Maths,
    "code": Code,
    "within-budget": WithinBudget,
    "overlong": Overlong,
    "box-overlap": BoxOverlap,
    "point-distance": PointDistance,
}


def get(spec: str, **args: Any) -> Reward | BatchReward:
    """A reward by name, or a user's function by `file.py:fn`, `module:fn` or `module.fn` (see `custom.load`).

    `args` are the named reward's arguments. Raises RewardError: unknown name or argument.
    """
    make = REWARDS.get(spec)
    if make is None and not any(mark in spec for mark in ".:"):
        raise RewardError(f"no reward {spec!r}: use one of {', '.join(REWARDS)}, or file.py:function")
    if make is None and args:
        raise RewardError(f"reward {spec!r} takes no arguments, but was given {', '.join(args)}")
    if make is None:
        return load(spec)
    try:
        return make(**args)
    except TypeError as error:
        raise RewardError(f"reward {spec!r}: {error}") from None
