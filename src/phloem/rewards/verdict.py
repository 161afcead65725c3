"""What a reward says about one completion: a `Verdict`.

A number alone cannot tell a wrong answer from a grader that broke. A verdict keeps the two apart: `reward` is a
finite number, or None for "not scored", and `status` says why. A time-out or crash that the completion caused scores
0; one that the gold answer or the machine caused is not scored, and the rollout leaves its group before any mean or
count is taken.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from phloem.kinds import PhloemError

__all__ = ["RewardError", "Status", "Verdict", "tally", "to_verdict"]


LARGEST = 2.0**128 - 2.0**104
"""The largest number that float32 holds: credit travels in it."""


class RewardError(PhloemError, ValueError):
    """A reward that is not a finite number or None, a wrong number of rewards, or a reward that cannot be loaded.

    `index` is the place of the completion in its batch, where there is one to blame.
    """

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class Status(StrEnum):
    """How a completion was judged, or why it was not."""

    RIGHT = "right"
    """Full marks."""
    WRONG = "wrong"
    """Less than full marks; partial credit counts as wrong."""
    NO_ANSWER = "no-answer"
    """Nothing that could be judged."""
    BAD_GOLD = "bad-gold"
    """The gold answer is unusable, whatever the completion says."""
    TIMEOUT = "timeout"
    FAULT = "fault"
    """The grader raised, crashed or ran out of memory."""


@dataclass(frozen=True)
class Verdict:
    """One completion's reward and the reason for it.

    `extracted` is the part of the completion that was judged, `parsed` and `gold` how the two sides were read, `detail`
    a sentence or a traceback. RIGHT and WRONG carry a reward, BAD_GOLD never does, the others may.

    Raises RewardError: NaN, infinite or not a number; a status that contradicts the reward.
    """

    status: Status
    reward: float | None
    extracted: str | None = None
    parsed: str | None = None
    gold: str | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))
        object.__setattr__(self, "reward", finite_or_none(self.reward))
        if self.status in (Status.RIGHT, Status.WRONG) and self.reward is None:
            raise RewardError(f"a verdict '{self.status}' needs a reward; None means not scored")
        if self.status is Status.BAD_GOLD and self.reward is not None:
            raise RewardError(f"a bad gold answer is not scored, but the reward is {self.reward}")

    @property
    def scored(self) -> bool:
        return self.reward is not None

    @classmethod
    def right(cls, extracted: str | None = None, **fields: Any) -> Verdict:
        return cls(Status.RIGHT, fields.pop("reward", 1.0), extracted, **fields)

    @classmethod
    def wrong(cls, extracted: str | None = None, **fields: Any) -> Verdict:
        return cls(Status.WRONG, fields.pop("reward", 0.0), extracted, **fields)

    @classmethod
    def no_answer(cls, detail: str = "", **fields: Any) -> Verdict:
        return cls(Status.NO_ANSWER, fields.pop("reward", 0.0), detail=detail, **fields)

    @classmethod
    def bad_gold(cls, detail: str, **fields: Any) -> Verdict:
        return cls(Status.BAD_GOLD, None, detail=detail, **fields)

    @classmethod
    def timeout(cls, detail: str = "", *, by_completion: bool, **fields: Any) -> Verdict:
        return cls(Status.TIMEOUT, 0.0 if by_completion else None, detail=detail, **fields)

    @classmethod
    def fault(cls, detail: str, *, by_completion: bool, **fields: Any) -> Verdict:
        return cls(Status.FAULT, 0.0 if by_completion else None, detail=detail, **fields)


def finite_or_none(value: Any) -> float | None:
    """A reward as a float, or None. Raises RewardError for everything else: text, lists, NaN, infinities."""
    if value is None:
        return None
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # numpy and torch scalars
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise RewardError(f"a reward is a finite number or None, not {_describe(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not abs(number) <= LARGEST:
        raise RewardError(f"a reward is a finite number or None, not {number}; float32 ends at {LARGEST:.1e}")
    return number


def to_verdict(value: Any, *, extracted: str | None = None) -> Verdict:
    """A user function's result as a verdict.

    A Verdict stays as it is; a number of at least 1 (or True) is RIGHT, a smaller one WRONG with that reward, None is
    not scored (NO_ANSWER). Raises RewardError for anything else.
    """
    if isinstance(value, Verdict):
        return value
    reward = finite_or_none(value)
    if reward is None:
        return Verdict(Status.NO_ANSWER, None, extracted, detail="the reward function returned None: not scored")
    return Verdict(Status.RIGHT if reward >= 1 else Status.WRONG, reward, extracted)


def tally(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Counts per status under the status's own name, and the shares an alarm watches.

    `unscored_share`, `timeout_share` and `fault_share` are parts of all verdicts in [0, 1] (0 when there are none);
    time-outs and faults are counted whether they scored 0 or were left out.
    """
    verdicts = list(verdicts)
    counts = Counter(verdict.status for verdict in verdicts)
    total = max(len(verdicts), 1)
    return {
        **{str(status): float(counts[status]) for status in Status},
        "unscored_share": sum(not verdict.scored for verdict in verdicts) / total,
        "timeout_share": counts[Status.TIMEOUT] / total,
        "fault_share": counts[Status.FAULT] / total,
    }


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
