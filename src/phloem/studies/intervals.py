"""Intervals at 95 %: of a share of seeds (Wilson), of a mean over few seeds (Student), of a difference of two means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from phloem.evaluate.statistics import Z, wilson_bounds

__all__ = ["Estimate", "difference", "mean_of_seeds", "student", "wilson"]

_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""The .975 quantile of Student's t for 1 to 20 degrees of freedom."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval and the number of seeds behind it; NaN bounds where one seed gives none."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return self.shown(".3f")

    def shown(self, form: str) -> str:
        """In words, each number in the given format."""
        if self.n == 0:
            return "no run"
        if np.isnan(self.low):
            return f"{self.value:{form}} (1 seed, no interval)"
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}] ({self.n} seeds)"


NO_SEEDS = Estimate(float("nan"), float("nan"), float("nan"), 0)


def student(df: float) -> float:
    """The .975 quantile of Student's t; above 20 degrees of freedom by its expansion around the normal's."""
    if df < 1:
        return float("nan")
    if df <= 20:
        return _STUDENT[int(df) - 1]
    return Z + (Z**3 + Z) / (4 * df)


def mean_of_seeds(values: Sequence[float] | np.ndarray) -> Estimate:
    """Mean over seeds with Student's interval; values that are NaN are no seeds."""
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    n = len(known)
    if n == 0:
        return NO_SEEDS
    half = student(n - 1) * known.std(ddof=1) / sqrt(n) if n > 1 else float("nan")
    return Estimate(float(known.mean()), float(known.mean() - half), float(known.mean() + half), n)


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Mean of `second` minus mean of `first` with Welch's interval; n is the smaller number of seeds.

    Seeds that are the same number draw different rollouts under different rules, so they are not paired.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    n = min(len(a), len(b))
    if n == 0:
        return NO_SEEDS
    gap = float(b.mean() - a.mean())
    if n == 1:
        return Estimate(gap, float("nan"), float("nan"), 1)
    parts = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    squares = parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1)
    df = sum(parts) ** 2 / squares if squares > 0 else n - 1
    half = student(df) * sqrt(sum(parts))
    return Estimate(gap, gap - half, gap + half, n)


def wilson(successes: int, n: int) -> Estimate:
    """A share of n seeds with Wilson's interval."""
    if n == 0:
        return NO_SEEDS
    return Estimate(successes / n, *wilson_bounds(successes / n, n), n)
