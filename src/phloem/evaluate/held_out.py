"""Mean reward on held-out prompts, and the gain between two evaluations of the same prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from phloem.means import known_mean

__all__ = ["Gain", "HeldOut", "paired_gain"]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rewards of n samples on each of B prompts; NaN: not scored.

    Attributes:
        ids: of the examples.
        rewards_Bn: one row per prompt.
        truncated: share of samples that hit their token budget.
    """

    ids: tuple[str, ...]
    rewards_Bn: Float64[np.ndarray, "B n"]
    truncated: float

    @property
    def means_B(self) -> Float64[np.ndarray, " B"]:
        """Mean reward of each prompt over its scored samples; NaN where none was scored."""
        scored_B = (~np.isnan(self.rewards_Bn)).sum(1)
        return np.where(scored_B > 0, np.nansum(self.rewards_Bn, 1) / np.maximum(scored_B, 1), np.nan)

    @property
    def mean(self) -> float:
        """Mean over prompts of their mean rewards."""
        return known_mean(self.means_B)

    @property
    def standard_error(self) -> float:
        """Of `mean`, with the prompt as the independent unit (samples of a prompt are not independent)."""
        known = self.means_B[~np.isnan(self.means_B)]
        return float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else float("nan")


@dataclass(frozen=True)
class Gain:
    """Difference of two evaluations, paired by prompt, with a bootstrap interval over prompts."""

    mean: float
    low: float
    high: float
    prompts: int
    confidence: float = 0.95

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def paired_gain(before: HeldOut, after: HeldOut, confidence: float = 0.95, draws: int = 10_000) -> Gain:
    """Gain in mean reward from `before` to `after` over the prompts scored in both.

    The interval is a percentile bootstrap over prompts with a fixed seed, so it is the same for the same rewards.

    Raises:
        ValueError: the two are of different prompts.
    """
    if before.ids != after.ids:
        raise ValueError("the two evaluations are of different prompts; a paired gain needs the same ones")
    difference_B = after.means_B - before.means_B
    difference_B = difference_B[~np.isnan(difference_B)]
    if len(difference_B) == 0:
        return Gain(float("nan"), float("nan"), float("nan"), 0, confidence)
    rng = np.random.default_rng(0)
    resampled = difference_B[rng.integers(0, len(difference_B), (draws, len(difference_B)))].mean(1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Gain(float(difference_B.mean()), float(low), float(high), len(difference_B), confidence)
