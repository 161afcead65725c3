"""The learning rate over a run."""

from __future__ import annotations

from math import cos, pi

from phloem.config import OptimConfig

__all__ = ["rate_factor"]


def rate_factor(update: int, config: OptimConfig) -> float:
    """What `optim.lr` is multiplied by at an optimiser update, counted from 0.

    Warm-up rises in equal parts to 1, beginning above 0: the first update of a run is never wasted. After it,
    `constant` stays, `linear` and `cosine` fall and would reach 0 one update after the last.
    """
    warm = config.warmup_steps * config.updates_per_step
    total = config.steps * config.updates_per_step
    if update < warm:
        return (update + 1) / warm
    passed = (update - warm) / max(1, total - warm)
    match config.schedule:
        case "constant":
            return 1.0
        case "linear":
            return max(0.0, 1.0 - passed)
        case "cosine":
            return 0.5 * (1.0 + cos(pi * min(1.0, passed)))
