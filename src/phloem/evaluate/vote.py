"""Majority vote: the answer that most samples of a problem agree on, and what it earns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phloem.rewards.verdict import Status

__all__ = ["Vote", "majority", "same_maths"]


@dataclass(frozen=True)
class Vote:
    """What the samples of one problem agree on.

    Attributes:
        value: reward of the winning answer; of several that tie, the mean of theirs, which is what drawing one of them
            earns on average. 0 where no scored sample has an answer, NaN where no sample was scored.
        tied: answers with the most votes; 0 where nobody voted.
    """

    value: float
    tied: int


def majority(
    answers: Sequence[tuple[str, str] | None], rewards: Sequence[float | None], same: Callable[[str, str], bool]
) -> Vote:
    """The vote over the samples of one problem.

    Samples that were not scored, or gave no answer, do not vote. An answer's reward is the mean of its voters'.

    Args:
        answers: (how it was read, how it was written) of each sample; None: no answer.
        rewards: of each sample; None: not scored.
        same: whether two answers, as written, are equal; asked only where they were read differently.
    """
    if all(reward is None for reward in rewards):
        return Vote(float("nan"), 0)
    camps: list[tuple[tuple[str, str], list[float]]] = []
    for answer, reward in zip(answers, rewards, strict=True):
        if answer is None or reward is None:
            continue
        # Readings first, for all camps: asking `same` may mean a call of a worker process.
        camp = next((c for c in camps if c[0][0] == answer[0]), None) or next(
            (c for c in camps if same(answer[1], c[0][1])), None
        )
        if camp is None:
            camps.append((answer, [reward]))
        else:
            camp[1].append(reward)
    if not camps:
        return Vote(0.0, 0)
    most = max(len(voters) for _, voters in camps)
    winners = [sum(voters) / len(voters) for _, voters in camps if len(voters) == most]
    return Vote(sum(winners) / len(winners), len(winners))


def same_maths(left: str, right: str) -> bool:
    """Whether the maths grader takes `left` for an answer to a problem whose gold answer is `right`."""
    from phloem.rewards.math import verify

    return verify(completion=f"\\boxed{{{left}}}", answer=right).status is Status.RIGHT
