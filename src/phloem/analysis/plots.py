"""Pictures of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["draw_curves", "read_metrics"]

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
"""Okabe and Ito's palette: told apart with any colour vision."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl or rollouts.jsonl; a last line cut short by a kill is left out."""
    records = []
    # Split at line feeds alone: texts of rollouts may hold what str.splitlines takes for the end of a line.
    for line in path.read_bytes().split(b"\n"):
        try:
            records.append(json.loads(line))
        except ValueError:  # not JSON, or cut inside a character
            break
    return records


def draw_curves(records: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draws a run: reward (training, held-out, constant-answer baseline), spread, lengths, gap and gradient norm.

    Args:
        records: of metrics.jsonl.
        path: of the picture; the ending names the format.
        title: of the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = [r for r in records if r["kind"] == "train"]
    held_out = [r for r in records if r["kind"] == "evaluation"]
    x = np.array([r["step"] for r in steps])

    def series(key: str) -> np.ndarray:
        return np.array([r.get(key) for r in steps], dtype=float)

    figure, axes = plt.subplots(2, 2, figsize=(11, 7), constrained_layout=True)
    figure.suptitle(title)
    reward, spread, variance, health = axes.flat

    _noisy(reward, x, series("reward"), BLUE, "training rollouts")
    if held_out:
        at = [r["step"] for r in held_out]
        mean, error = (np.array([r[k] for r in held_out], dtype=float) for k in ("reward", "standard_error"))
        reward.errorbar(at, mean, 1.96 * error, color=ORANGE, marker="o", capsize=3, label="held-out, 95 % interval")
        if (baseline := held_out[0].get("constant_baseline")) is not None:
            reward.axhline(baseline, color=GREY, linestyle=":", label="always the commonest answer")
    reward.set(xlabel="step", ylabel="mean reward", ylim=(-0.02, 1.02) if _unit(steps) else None)

    _noisy(spread, x, series("zero_spread"), BLUE, "groups of equal reward")
    _noisy(spread, x, series("truncated"), ORANGE, "truncated rollouts")
    spread.set(xlabel="step", ylabel="share", ylim=(-0.02, 1.02))

    for key, colour, label in (("within_variance", BLUE, "within thoughts"), ("between_variance", ORANGE, "between")):
        if not np.isnan(series(key)).all():
            _noisy(variance, x, series(key), colour, label)
    variance.set(xlabel="step", ylabel="variance of the reward", ylim=(0, None))

    _noisy(health, x, series("gap"), BLUE, "gap: |old - sampled| logprob (nats)")
    _noisy(health, x, series("grad_norm"), ORANGE, "gradient norm")
    health.set(xlabel="step", yscale="log")
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _noisy(axis: Any, x: np.ndarray, y: np.ndarray, colour: str, label: str) -> None:
    """The raw series, faint, and its running mean over a tenth of the run."""
    axis.plot(x, y, color=colour, alpha=0.3, linewidth=1, marker="." if len(x) < 40 else None)
    window = max(1, len(x) // 10)
    known = ~np.isnan(y)
    if known.sum() >= window > 1:
        smooth = np.convolve(y[known], np.ones(window) / window, mode="valid")
        axis.plot(x[known][window - 1 :], smooth, color=colour, label=label)
    else:
        axis.plot(x, y, color=colour, label=label)


def _unit(steps: Sequence[Mapping[str, Any]]) -> bool:
    rewards = [r["reward"] for r in steps if r["reward"] is not None]
    return all(0 <= r <= 1 for r in rewards)
