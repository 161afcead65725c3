"""Alarms: what would let a run look healthy while it learns nothing, or learns from broken judgements.

An alarm reads the figures of each training step (docs/metrics.md) and speaks in one sentence: what is wrong, and what
to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, NamedTuple, Protocol

from phloem.config import TrainConfig

__all__ = ["Alarm", "Alarms", "ClippedAlarm", "FaultAlarm", "Raised", "UnscoredAlarm"]

REMINDER = 10
"""An alarm about a share speaks at the first step of a row, then after every so many."""

Figures = Mapping[str, Any]


class Alarm(Protocol):
    """Watches one thing, step after step."""

    def __call__(self, metrics: Figures) -> str | None:
        """What is wrong at this step and what to do, or None."""
        ...


class Raised(NamedTuple):
    """A message, and whether the run is to stop."""

    message: str
    stop: bool


class Alarms:
    """All alarms of a run, asked once per training step."""

    def __init__(self, config: TrainConfig) -> None:
        self._alarms: tuple[tuple[Alarm, bool], ...] = (
            (ClippedAlarm(config), config.run.clipped_alarm_stop),
            (FaultAlarm(config), False),
            (UnscoredAlarm(config), False),
        )

    def __call__(self, metrics: Figures) -> list[Raised]:
        said = [(alarm(metrics), stop) for alarm, stop in self._alarms]
        return [Raised(message, stop) for message, stop in said if message is not None]


class ClippedAlarm:
    """Speaks up when the token budget is too short for anything to be learnt.

    Every rollout at its budget and no group with a spread, step after step, trains nothing and looks healthy.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._patience = config.run.clipped_alarm_steps
        self._budget = config.sample.max_completion_tokens
        self._in_a_row = 0

    def __call__(self, metrics: Figures) -> str | None:
        """The warning after every `run.clipped_alarm_steps` such steps in a row, else None."""
        clipped = metrics["truncated"] == 1.0 and (metrics["zero_spread"] == 1.0 or isnan(metrics["zero_spread"]))
        self._in_a_row = self._in_a_row + 1 if clipped else 0
        if not self._in_a_row or self._in_a_row % self._patience:
            return None
        return (
            f"for {self._in_a_row} steps every rollout hit its budget of {self._budget} tokens and no group had a "
            "spread of rewards, so nothing was learnt: raise sample.thought_tokens and sample.answer_tokens"
        )


@dataclass
class _Row:
    """Counts steps in a row that are above a threshold."""

    threshold: float
    steps: int = 0

    def __call__(self, share: float) -> bool:
        """Whether to speak: at the first step of a row and after every `REMINDER`."""
        self.steps = self.steps + 1 if share > self.threshold else 0
        return self.steps == 1 or (self.steps > 0 and self.steps % REMINDER == 0)


class FaultAlarm:
    """Speaks up when too many judgements break off, whether they then score 0 or are left out.

    Elsewhere such rollouts become zeros that nobody sees, and the policy is trained away from what broke the grader.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._row = _Row(config.run.fault_alarm_share)
        self._where = _where_reasons_are(config)

    def __call__(self, metrics: Figures) -> str | None:
        """The warning while faults and time-outs are more than `run.fault_alarm_share` of the rollouts, else None."""
        share = metrics["verdict/fault_share"] + metrics["verdict/timeout_share"]
        if not self._row(share):
            return None
        return (
            f"{share:.0%} of the step's judgements broke off ({metrics['verdict/fault']:.0f} faults, "
            f"{metrics['verdict/timeout']:.0f} time-outs), more than run.fault_alarm_share {self._row.threshold:g}"
            f"{_steps(self._row.steps)}: mend the reward, or give it more time; {self._where}"
        )


class UnscoredAlarm:
    """Speaks up when too many rollouts carry no reward: they were sampled and train nothing."""

    def __init__(self, config: TrainConfig) -> None:
        self._row = _Row(config.run.unscored_alarm_share)
        self._where = _where_reasons_are(config)

    def __call__(self, metrics: Figures) -> str | None:
        """The warning while unscored rollouts are more than `run.unscored_alarm_share` of all, else None."""
        share = metrics["verdict/unscored_share"]
        if not self._row(share):
            return None
        bad_golds = metrics["verdict/bad-gold"]
        if bad_golds:
            remedy = f"{bad_golds:.0f} of them have an unusable gold answer; `phloem doctor` lists such rows"
        else:
            remedy = f"find out why the reward gives them none; {self._where}"
        return (
            f"{share:.0%} of the step's rollouts were not scored and train nothing, more than "
            f"run.unscored_alarm_share {self._row.threshold:g}{_steps(self._row.steps)}: {remedy}"
        )


def _steps(in_a_row: int) -> str:
    return "" if in_a_row == 1 else f" for {in_a_row} steps in a row"


def _where_reasons_are(config: TrainConfig) -> str:
    if config.run.save_rollouts:
        return "rollouts.jsonl gives the reason of each as `detail`"
    return "run.save_rollouts true keeps the reason of each"
