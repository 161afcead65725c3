"""Figures of one benchmark, from the samples of its problems.

A problem is the independent unit: its samples share its difficulty. Every figure is a mean over problems, and its
standard error the spread of the problems' values over the root of their number (the cluster-robust error of clusters of
equal size; Miller 2024, arXiv 2411.00640, section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from phloem.evaluate.held_out import HeldOut
from phloem.evaluate.pass_at_k import pass_at_k
from phloem.evaluate.predictions import Prediction, Sample
from phloem.evaluate.vote import majority
from phloem.rewards.verdict import Status

__all__ = ["Estimate", "Figures", "Z", "estimate", "wilson_bounds"]

Z = 1.959964
"""Of a two-sided 95 % interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean over problems of a value in [0, 1], its standard error, a 95 % interval, and the number of problems."""

    value: float
    standard_error: float
    low: float
    high: float
    problems: int


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of per-problem values in [0, 1]; NaN values (nothing scored) are left out.

    The interval is Wilson's, for the number of independent trials whose binomial error would be the observed one
    (Korn & Graubard 1998). Where all problems agree the observed error is 0, and each problem counts as one trial: with
    0 of 30 solved the interval is [0, .114], not a point.
    """
    known = np.asarray([v for v in values if not math.isnan(v)], dtype=np.float64)
    n = len(known)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, math.nan, 0)
    mean = float(known.mean())
    error = float(known.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    trials = mean * (1 - mean) / error**2 if n > 1 and error > 1e-9 and 0 < mean < 1 else n
    return Estimate(mean, error, *wilson_bounds(mean, trials), n)


def wilson_bounds(share: float, trials: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of some trials, which stays inside [0, 1] and holds the share."""
    middle = (share + Z**2 / (2 * trials)) / (1 + Z**2 / trials)
    half = Z * math.sqrt(share * (1 - share) / trials + (Z / (2 * trials)) ** 2) / (1 + Z**2 / trials)
    return min(max(0.0, middle - half), share), max(min(1.0, middle + half), share)


@dataclass(frozen=True, eq=False)
class Figures:
    """What the report says of one benchmark.

    Args:
        predictions: one per problem, each with as many samples as the others.
        same: whether two answers are equal, for the vote; None where answers cannot be compared (programs).
    """

    predictions: Sequence[Prediction]
    same: Callable[[str, str], bool] | None

    @cached_property
    def samples(self) -> list[Sample]:
        return [sample for prediction in self.predictions for sample in prediction.samples]

    @cached_property
    def held_out(self) -> HeldOut:
        """The rewards by problem and sample, for paired comparisons."""
        rewards = [[s.reward for s in p.samples] for p in self.predictions]
        return HeldOut(tuple(p.id for p in self.predictions), np.array(rewards, dtype=np.float64), self.clipped_share)

    @cached_property
    def mean(self) -> Estimate:
        """Mean reward; samples that were not scored are in no mean."""
        return estimate(self.held_out.means_B.tolist())

    @cached_property
    def pass_at(self) -> dict[int, Estimate]:
        """pass@k for k = 1..n; problems with fewer than k scored samples are left out of it."""
        counts = [
            (sum(s.reward is not None for s in p.samples), sum(s.status is Status.RIGHT for s in p.samples))
            for p in self.predictions
        ]
        most = max((scored for scored, _ in counts), default=0)
        return {
            k: estimate([pass_at_k(scored, right, k) if scored >= k else math.nan for scored, right in counts])
            for k in range(1, most + 1)
        }

    @cached_property
    def vote(self) -> tuple[Estimate, int] | None:
        """The majority vote, and in how many problems several answers tied for it; None for programs."""
        if self.same is None:
            return None
        votes = [
            majority([s.answer for s in p.samples], [s.reward for s in p.samples], self.same) for p in self.predictions
        ]
        return estimate([v.value for v in votes]), sum(v.tied > 1 for v in votes)

    @property
    def clipped_share(self) -> float:
        """Share of samples that reached the cap."""
        return self._share(lambda s: s.clipped)

    @property
    def no_answer_share(self) -> float:
        return self._share(lambda s: s.status is Status.NO_ANSWER)

    @property
    def unscored_share(self) -> float:
        return self._share(lambda s: s.reward is None)

    @property
    def verdicts(self) -> Mapping[str, int]:
        """Samples by verdict, all kinds listed."""
        return {str(status): sum(s.status is status for s in self.samples) for status in Status}

    @property
    def tokens(self) -> float:
        """Mean completion tokens of a sample, the closing EOS included."""
        return float(np.mean([s.tokens for s in self.samples])) if self.samples else math.nan

    def _share(self, holds: Callable[[Sample], bool]) -> float:
        return sum(map(holds, self.samples)) / len(self.samples) if self.samples else math.nan
