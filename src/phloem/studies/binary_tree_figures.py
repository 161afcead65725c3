"""Figures and tables of the binary tree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phloem.studies.figures import GREY, finish, panels
from phloem.studies.figures import RULES as STYLE
from phloem.studies.intervals import Estimate, wilson
from phloem.studies.study import Figure
from phloem.studies.tree_game import RULES

__all__ = ["PUBLISHED", "converged_share", "draw", "tables"]

PUBLISHED = {
    (1, -0.5): (0.3995, 0.5663),
    (1, -1.0): (0.0000, 0.7535),
    (1, -1.5): (0.2000, 0.4463),
    (2, -0.5): (0.1980, 0.4292),
    (2, -1.0): (0.0488, 0.3612),
    (2, -1.5): (0.0000, 0.3820),
}
"""(n, r_neg): mean share of the target for GRPO and lambda-GRPO, GPT-2-small, 5 seeds."""


def converged_share(cells: list[dict[str, Any]], rule: str, lr: float, n: int | None = None) -> Estimate:
    """Share of converged seeds over the games (of one n), with Wilson's interval."""
    mine = [c for c in cells if c["rule"] == rule and c["lr"] == lr and n in (None, c["n"])]
    return wilson(sum(c["converged"] for c in mine), sum(c["seeds"] for c in mine))


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    figures = []
    for part, name, unit in (
        ("table", "tabular policy, plain gradient steps", "learning rate (table)"),
        ("transformer", "small transformer, Adam", "learning rate (Adam)"),
    ):
        cells = measured[part]
        rates = sorted({c["lr"] for c in cells})
        figure, axes = panels(2, width=9.0, height=4.2)
        for axis, n in zip(axes, (1, 2), strict=True):
            for rule in RULES:
                colour, marker, label = STYLE[rule]
                found = [converged_share(cells, rule, lr, n) for lr in rates]
                y = np.array([e.value for e in found])
                spread = np.abs(np.array([[e.low for e in found], [e.high for e in found]]) - y)
                axis.errorbar(rates, y, spread, color=colour, marker=marker, capsize=3, label=label)
            axis.set_xscale("log")
            axis.set_xticks(rates, [f"{lr:g}" for lr in rates])
            axis.minorticks_off()
            axis.set(xlabel=unit, ylim=(-0.03, 1.03), title=f"penalty shares {n} turn{'s' * (n > 1)}")
        axes[0].set_ylabel("share of seeds that converge")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        seeds = cells[0]["seeds"]
        caption = (
            f"Binary tree, {name}: share of seeds that converge on the target, over the games of one n ({seeds} seeds "
            "each); bars are 95 % Wilson intervals."
        )
        figures.append(Figure(finish(figure, folder / f"binary-tree-{part}.png"), caption))
    figures.append(_games_figure(measured["transformer"], folder))
    return figures


def _games_figure(cells: list[dict[str, Any]], folder: Path) -> Figure:
    lr = min(c["lr"] for c in cells)
    games = sorted({(c["n"], c["r_neg"]) for c in cells}, key=lambda g: (g[0], -g[1]))
    figure, (axis,) = panels(1)
    for i, rule in enumerate(RULES):
        colour, marker, label = STYLE[rule]
        mine = [next(c for c in cells if (c["n"], c["r_neg"], c["rule"], c["lr"]) == (*g, rule, lr)) for g in games]
        x = np.arange(len(games)) + 0.17 * (i - 1.5)
        means = [c["mean"] for c in mine]
        errors = [1.96 * (c["standard_error"] or 0) for c in mine]
        axis.errorbar(x, means, errors, color=colour, marker=marker, linestyle="", capsize=3, label=label)
    for i, column in ((0, 0), (1, 1)):
        x = np.arange(len(games)) + 0.17 * (i - 1.5)
        values = [PUBLISHED[g][column] for g in games]
        label = "published (5 seeds)" if column == 0 else None
        axis.plot(x, values, marker="x", linestyle="", color=GREY, markersize=9, markeredgewidth=2, label=label)
    axis.set_xticks(range(len(games)), [f"n {n}\nr_neg {r:g}" for n, r in games])
    axis.set(ylabel="mean share of the target", ylim=(-0.03, 1.25))
    axis.legend(ncols=3, loc="upper center", fontsize=9)
    caption = (
        f"Binary tree, small transformer at Adam {lr:g}: mean share of the target over the last 50 steps, bars 1.96 "
        "standard errors; crosses are the published means of GPT-2-small for GRPO (left) and lambda-GRPO (right)."
    )
    return Figure(finish(figure, folder / "binary-tree-games.png"), caption)


def tables(measured: Mapping[str, Any]) -> str:
    """Every cell, published means beside."""
    lines = []
    for part, name in (
        ("table", "Tabular policy"),
        ("transformer", "Small transformer"),
        ("pretrained", "SmolLM2-135M"),
    ):
        cells = measured[part]
        if not cells:
            continue
        lines += [
            f"\n### {name}: mean share of the target ± standard error, share of converged seeds\n",
            "| lr | n | r_neg | published GRPO / lambda | " + " | ".join(STYLE[r][2] for r in RULES) + " |",
            "|---|---|---|---|" + "---|" * len(RULES),
        ]
        for lr, n, r_neg in sorted({(c["lr"], c["n"], -c["r_neg"]) for c in cells}):
            row = {c["rule"]: c for c in cells if (c["lr"], c["n"], -c["r_neg"]) == (lr, n, r_neg)}
            published = " / ".join(f"{v:.4f}" for v in PUBLISHED[(n, -r_neg)])
            own = [_shown(row[rule]) if rule in row else "-" for rule in RULES]
            lines.append(f"| {lr:g} | {n} | {-r_neg:g} | {published} | " + " | ".join(own) + " |")
    return "## All cells\n" + "\n".join(lines)


def _shown(cell: Mapping[str, Any]) -> str:
    error = "" if cell["standard_error"] is None else f" ± {cell['standard_error']:.3f}"
    return f"{cell['mean']:.3f}{error}, {cell['converged']}/{cell['seeds']}"
