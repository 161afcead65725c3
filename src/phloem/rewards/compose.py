"""Rewards made of rewards, and the one place where a batch is scored."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from phloem.rewards.surroundings import surroundings_kept
from phloem.rewards.verdict import RewardError, Status, Verdict, to_verdict

__all__ = ["BatchReward", "Gate", "Reward", "WeightedSum", "score_all"]

Row = Mapping[str, Any]


class Reward(Protocol):
    """One completion's reward. `completion` is what the policy wrote and nothing else, as one string, whatever the
    style of the prompt; `answer` is the gold answer and `row` the data row, as the task holds them."""

    def __call__(self, completion: str, answer: Any, row: Row) -> float | Verdict | None: ...


@runtime_checkable
class BatchReward(Protocol):
    """A reward that scores many completions at once, faster than one by one; `score_all` prefers it."""

    def score_batch(self, completions: Sequence[str], answers: Sequence[Any], rows: Sequence[Row]) -> list[Verdict]: ...


def name_of(reward: Any) -> str:
    return getattr(reward, "name", None) or getattr(reward, "__qualname__", None) or type(reward).__name__


def score_all(
    reward: Reward | BatchReward, completions: Sequence[str], answers: Sequence[Any], rows: Sequence[Row]
) -> list[Verdict]:
    """One verdict per completion, in order.

    A reward that raises gives a FAULT that is not scored; the first of a batch keeps its traceback in `detail`.
    Raises RewardError: lengths differ; a value that is not a finite number or None (naming reward, row and value).
    """
    if not len(completions) == len(answers) == len(rows):
        raise RewardError(f"{len(completions)} completions, {len(answers)} answers and {len(rows)} rows: need as many")
    with surroundings_kept():
        return _score_all(reward, completions, answers, rows)


def _score_all(
    reward: Reward | BatchReward, completions: Sequence[str], answers: Sequence[Any], rows: Sequence[Row]
) -> list[Verdict]:
    if isinstance(reward, BatchReward):
        verdicts = list(reward.score_batch(completions, answers, rows))
        if len(verdicts) != len(completions):
            raise RewardError(f"{name_of(reward)} gave {len(verdicts)} verdicts for {len(completions)} completions")
        return verdicts
    if not callable(reward):
        raise RewardError(f"{name_of(reward)} is no reward: it has no score_batch and cannot be called")
    single = cast(Reward, reward)
    outcomes = [
        attempt(lambda i=i: single(completions[i], *own_copy((answers[i], rows[i])))) for i in range(len(completions))
    ]
    return outcomes_to_verdicts(outcomes, name_of(reward))


def own_copy(value: Any) -> Any:
    """A copy that a reward may change: the rollouts of a group share their answer and row, and the next epoch too.

    What cannot be copied is handed over as it is.
    """
    try:
        return deepcopy(value)
    except Exception:
        return value


def attempt(call: Callable[[], Any]) -> Any:
    """The call's value, or the exception it raised. `sys.exit` in a reward is a fault like any other."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        return error


def outcomes_to_verdicts(outcomes: Sequence[Any], name: str) -> list[Verdict]:
    """Values and exceptions, one per completion, as verdicts (see `score_all`)."""
    verdicts: list[Verdict] = []
    traced = False
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, BaseException):
            lines = traceback.format_exception(outcome) if not traced else traceback.format_exception_only(outcome)
            verdicts.append(Verdict.fault(f"{name} raised: {''.join(lines).strip()}", by_completion=False))
            traced = True
            continue
        try:
            verdicts.append(to_verdict(outcome))
        except RewardError as error:
            raise RewardError(f"{name}, completion {index} of the batch: {error}", index) from None
    return verdicts


@dataclass(frozen=True)
class WeightedSum:
    """sum_k weight_k * reward_k over the parts, given as (reward, weight) pairs.

    The first part is the principal: status, extracted and parsed text are its own. A part that abstains (None) adds
    nothing; if all abstain the sum does too. A part that could not be scored for another reason (fault, time-out, bad
    gold) leaves the whole unscored: a partial sum would be compared with full ones.
    """

    parts: tuple[tuple[Reward | BatchReward, float], ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise RewardError("a weighted sum needs at least one (reward, weight) pair")

    def score_batch(self, completions: Sequence[str], answers: Sequence[Any], rows: Sequence[Row]) -> list[Verdict]:
        columns = [score_all(reward, completions, answers, rows) for reward, _ in self.parts]
        weights = [weight for _, weight in self.parts]
        return [_weighted(verdicts, weights) for verdicts in zip(*columns, strict=True)]


def _weighted(verdicts: Sequence[Verdict], weights: Sequence[float]) -> Verdict:
    broken = [verdict for verdict in verdicts if not verdict.scored and verdict.status is not Status.NO_ANSWER]
    if broken:
        return broken[0]
    scored = [(verdict, weight) for verdict, weight in zip(verdicts, weights, strict=True) if verdict.scored]
    if not scored:
        return verdicts[0]
    total = sum(weight * verdict.reward for verdict, weight in scored if verdict.reward is not None)
    head = scored[0][0]
    return Verdict(head.status, total, head.extracted, head.parsed, head.gold, head.detail)


@dataclass(frozen=True)
class Gate:
    """`reward` where `condition` scores at least `threshold`, else 0 with the condition's explanation.

    Both are asked about every completion: what one of them cannot score is not scored, open gate or not.
    """

    condition: Reward | BatchReward
    reward: Reward | BatchReward
    threshold: float = 1.0

    def score_batch(self, completions: Sequence[str], answers: Sequence[Any], rows: Sequence[Row]) -> list[Verdict]:
        conditions = score_all(self.condition, completions, answers, rows)
        verdicts = score_all(self.reward, completions, answers, rows)
        return [self._through(condition, verdict) for condition, verdict in zip(conditions, verdicts, strict=True)]

    def _through(self, condition: Verdict, verdict: Verdict) -> Verdict:
        if not verdict.scored or condition.reward is None:
            return condition if verdict.scored else verdict
        if condition.reward >= self.threshold:
            return verdict
        return Verdict(Status.WRONG, 0.0, verdict.extracted, verdict.parsed, verdict.gold, condition.detail)
