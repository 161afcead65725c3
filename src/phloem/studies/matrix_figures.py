"""Curves and gains of the shared runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phloem.studies.figures import RULES, finish, panels
from phloem.studies.intervals import mean_of_seeds
from phloem.studies.study import Figure

__all__ = ["curves", "gains"]

SHAPES = {"grpo": "T16A1", "lambda-grpo": "T16A1", "grpo-ma": "T4A4", "lambda-grpo-ma": "T4A4"}


def curves(runs: Sequence[Mapping[str, Any]], folder: Path) -> list[Figure]:
    """Held-out reward of the four rules against sampled tokens, with 95 % bands over seeds."""
    if not any((r["rule"], r["shape"]) in SHAPES.items() for r in runs):
        return []
    figure, (axis,) = panels(1, height=4.4)
    counts, means = [], []
    for i, (rule, shape) in enumerate(SHAPES.items()):
        mine = [r for r in runs if (r["rule"], r["shape"], r["task"]) == (rule, shape, "sums")]
        if not mine:
            continue
        colour, marker, label = RULES[rule]
        points = min(len(r["evaluations"]) for r in mine)
        x = np.array([r["tokens_at"][:points] for r in mine]).mean(0) * (1 + 0.006 * (i - 1.5))
        found = [mean_of_seeds([r["evaluations"][p][1] for r in mine]) for p in range(points)]
        y = [e.value for e in found]
        axis.plot(x, y, color=colour, marker=marker, label=f"{label}, {shape}")
        axis.fill_between(x, [e.low for e in found], [e.high for e in found], color=colour, alpha=0.12, linewidth=0)
        counts.append(len(mine))
        means += y
    if means:  # bands of few seeds are wider than anything there is to see
        axis.set_ylim(min(means) - 0.15, max(means) + 0.15)
    axis.set(xlabel="sampled tokens", ylabel="mean held-out reward")
    axis.legend(title="bands: 95 % over seeds")
    seeds = f"{min(counts)} to {max(counts)}" if counts and min(counts) != max(counts) else str(max(counts, default=0))
    caption = (
        f"Held-out reward of four rules at equal sampled tokens, {seeds} seeds each; bands are Student's 95 % "
        "intervals over seeds (none for one seed)."
    )
    return [Figure(finish(figure, folder / "matrix-curves.png"), caption)]


def gains(runs: Sequence[Mapping[str, Any]]) -> str:
    """A line per rule and shape: seeds, steps, tokens, seconds, held-out reward before and after."""
    if not runs:
        return ""
    lines = [
        "| task | rule | shape | seeds | steps | sampled tokens | seconds | before | after | gain |",
        "|" + "---|" * 10,
    ]
    kinds = dict.fromkeys((r["task"], r["rule"], r["shape"]) for r in runs)
    for kind in kinds:
        mine = [r for r in runs if (r["task"], r["rule"], r["shape"]) == kind]
        before, after = ([r["evaluations"][i][1] for r in mine] for i in (0, -1))
        gain = mean_of_seeds([b - a for a, b in zip(before, after, strict=True)])
        tokens, seconds = (np.mean([r[key] for r in mine]) for key in ("sampled_tokens", "seconds"))
        shown = f"{gain.value:+.3f}" + ("" if gain.n < 2 else f" [{gain.low:+.3f}, {gain.high:+.3f}]")
        lines.append(
            f"| {' | '.join(kind)} | {len(mine)} | {mine[0]['steps']} | {tokens:,.0f} | {seconds:.0f} | "
            f"{np.mean(before):.3f} | {np.mean(after):.3f} | {shown} |"
        )
    return f"## {len(runs)} runs\n\n" + "\n".join(lines)
