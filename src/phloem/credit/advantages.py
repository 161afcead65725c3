"""Advantages: values against a baseline, divided by a spread.

Source: GRPO (arXiv 2402.03300, eq. 3), GRPO-MA (arXiv 2509.24494) for the level baseline, RLOO (arXiv 2402.14740)
for the leave-one-out one.

Decided here: a difference that float32 rounding of the rewards could make is exactly 0. Equal rewards such as
8 x 0.1 leave a tiny spread, and dividing by it would turn rounding into advantages of order one. So a set of equal
values, and with it a lone scored rollout, has advantage 0. (With baseline `none` nothing is subtracted, and only
the division is guarded.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from phloem.credit.values import Branches
from phloem.presets import Baseline, Rule
from phloem.tree import Group

__all__ = ["Advantages", "advantages", "is_flat", "rounding"]


@dataclass(frozen=True, eq=False)
class Advantages:
    """Per branch: the advantage, the baseline it was compared with and the divisor, eps included."""

    advantage_B: Float64[np.ndarray, " B"]
    baseline_B: Float64[np.ndarray, " B"]
    divisor_B: Float64[np.ndarray, " B"]


def rounding(rewards_R: Float64[np.ndarray, " R"]) -> float:
    """The largest difference that float32 rounding of these rewards explains; below 2**-126 its steps are even."""
    kind = np.finfo(np.float32)
    return float(kind.eps) * float(np.abs(rewards_R).max(initial=float(kind.tiny)))


def is_flat(values: Float64[np.ndarray, " n"], tolerance: float) -> bool:
    """Whether the values are equal up to the tolerance."""
    return values.size == 0 or bool(np.ptp(values) <= tolerance)


def advantages(group: Group, over: Branches, rule: Rule) -> Advantages:
    """The advantage of each branch of a group whose rollouts are all scored."""
    tolerance = rounding(group.rewards_R)
    set_B, sets = _sets(group, over, rule.baseline)
    spread_sets = [group.rewards_R] * len(sets) if rule.scale == "std-rewards" else sets
    mean_B = np.array([s.mean() for s in sets])[set_B]
    if rule.baseline == "none":
        mean_B = np.zeros_like(mean_B)
    elif rule.baseline == "leave-one-out":
        size_B = np.array([len(s) for s in sets], dtype=np.float64)[set_B]
        mean_B = (size_B * mean_B - over.value_B) / np.maximum(size_B - 1, 1)
        mean_B = np.where(size_B == 1, over.value_B, mean_B)

    difference_B = over.value_B - mean_B
    if rule.baseline != "none":
        difference_B[np.abs(difference_B) <= tolerance] = 0.0
    if rule.scale == "none":
        return Advantages(difference_B, mean_B, np.ones_like(difference_B))
    flat_B = np.array([is_flat(s, tolerance) for s in spread_sets], dtype=bool)[set_B]
    divisor_B = np.array([_std(s, rule.ddof) for s in spread_sets])[set_B] + rule.eps
    difference_B[flat_B] = 0.0
    return Advantages(difference_B / np.where(flat_B, 1.0, divisor_B), mean_B, divisor_B)


def _std(values: np.ndarray, ddof: int) -> float:
    return float(values.std(ddof=ddof)) if len(values) > ddof else 0.0


def _sets(
    group: Group, over: Branches, baseline: Baseline
) -> tuple[Int64[np.ndarray, " B"], list[Float64[np.ndarray, " n"]]]:
    """The sets of values that baselines and spreads are taken of, and the set of each branch."""
    if len(over.value_B) == 0:
        return np.zeros(0, dtype=np.int64), []
    if baseline == "group":
        return np.zeros(len(over.value_B), dtype=np.int64), [group.rewards_R]
    if baseline == "parent":
        parents, set_B = np.unique(over.parent_B, return_inverse=True)
        below: dict[int, list[float]] = {int(p): [] for p in parents}
        for leaf, reward in zip(group.leaves, group.rewards_R.tolist(), strict=True):
            for above in (-1, *group.path(leaf)[:-1]):
                if above in below:
                    below[above].append(reward)
        return set_B, [np.array(below[int(p)]) for p in parents]
    key_B = over.parent_B if baseline == "siblings" else over.level_B
    keys, set_B = np.unique(key_B, return_inverse=True)
    return set_B, [over.value_B[set_B == k] for k in range(len(keys))]
