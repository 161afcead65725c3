"""How the studies' figures look: readable at half width, told apart with any colour vision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phloem.analysis.plots import BLUE, GREEN, GREY, ORANGE, PINK

__all__ = ["BLUE", "GREEN", "GREY", "ORANGE", "PINK", "RULES", "finish", "panels", "seeds"]

AMBER = "#E69F00"

RULES: dict[str, tuple[str, str, str]] = {
    "grpo": (BLUE, "o", "GRPO"),
    "lambda-grpo": (ORANGE, "s", "lambda-GRPO"),
    "lambda-grpo-sn": (AMBER, "^", "lambda, self-normalised"),
    "grpo-scaled": (GREY, "D", "GRPO at lr x U/Z"),
    "grpo-ma": (GREEN, "v", "GRPO-MA"),
    "lambda-grpo-ma": (PINK, "P", "lambda-GRPO-MA"),
}
"""Colour, marker and label of each rule."""


def panels(columns: int = 1, rows: int = 1, width: float = 8.0, height: float = 3.8) -> tuple[Any, Any]:
    """A figure and its axes (always a flat list), `height` inches a row."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 12, "axes.titlesize": 12, "legend.fontsize": 10, "axes.axisbelow": True})
    figure, axes = plt.subplots(rows, columns, figsize=(width, height * rows), constrained_layout=True, squeeze=False)
    return figure, list(axes.flat)


def seeds(n: int) -> str:
    """A number of seeds in words."""
    return f"{n} seed{'s' * (n != 1)}"


def finish(figure: Any, path: Path) -> str:
    """Puts a light grid and frameless legends on all axes, saves the figure and returns its file's name."""
    import matplotlib.pyplot as plt

    for axis in figure.axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if (legend := axis.get_legend()) is not None:
            legend.set_frame_on(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return path.name
