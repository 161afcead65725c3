"""What a run shows while it goes: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import monotonic
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

__all__ = ["View"]

COLUMNS = (
    ("reward", "reward", "{:.3f}"),
    ("zero_spread", "zero spread", "{:.0%}"),
    ("truncated", "truncated", "{:.0%}"),
    ("token_ratio", "token ratio", "{:.2f}"),
    ("gap", "gap", "{:.4f}"),
    ("grad_norm", "grad norm", "{:.3f}"),
    ("seconds", "s/step", "{:.1f}"),
)
"""Key in the metrics, title, format."""
SHOWN = 8
BARS = "▁▂▃▄▅▆▇█"


class View:
    """`live` redraws a panel, `plain` prints a line per step, `none` prints nothing at all."""

    def __init__(self, mode: str, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.mode = ("live" if self.console.is_terminal else "plain") if mode == "auto" else mode
        self._live: Live | None = None
        self._rows: list[Mapping[str, Any]] = []
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            expand=True,
            console=self.console,
        )
        self._bar = self._progress.add_task("", total=1, left="")
        self._began, self._done = monotonic(), 0

    def say(self, message: str) -> None:
        """A line that stays."""
        if self.mode != "none":
            self.console.print(message, markup=False, soft_wrap=True)

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Begins a phase of `total` parts, or comes back to one with `done` parts finished."""
        self._began, self._done = monotonic(), done
        self._progress.reset(self._bar, total=max(total, 1), completed=done, description=name, left="")
        if self.mode == "live" and self._live is None:
            self._live = Live(self._panel(), console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        elif self.mode == "plain" and not done:
            self.say(f"{name} ...")
        self._redraw()

    def advance(self, done: int, note: str = "") -> None:
        """`done` parts of the phase are finished."""
        self._progress.update(self._bar, completed=done, left=f"{note}  {self._left(done)}".strip())
        self._redraw()

    def step(self, done: int, metrics: Mapping[str, Any]) -> None:
        """A training step is finished."""
        self._rows.append(metrics)
        total = int(self._progress.tasks[0].total or 1)
        if self.mode == "plain":
            parts = [f"{title} {_shown(metrics, key, form)}" for key, title, form in COLUMNS]
            self.say(f"step {done}/{total}  " + "  ".join(parts) + f"  {self._left(done)}")
        self.advance(done)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _left(self, done: int) -> str:
        total = int(self._progress.tasks[0].total or 1)
        if not self._done < done < total:
            return ""
        seconds = (monotonic() - self._began) / (done - self._done) * (total - done)
        return f"{_clock(seconds)} left"

    def _redraw(self) -> None:
        if self._live is not None:
            self._live.update(self._panel())

    def _panel(self) -> Panel:
        if not self._rows:
            return Panel(self._progress, title="phloem", title_align="left")
        table = Table(expand=True, box=None, pad_edge=False)
        table.add_column("step", justify="right", style="bold")
        for _, title, _ in COLUMNS:
            table.add_column(title, justify="right")
        for row in self._rows[-SHOWN:]:
            table.add_row(str(row["step"]), *(_shown(row, key, form) for key, _, form in COLUMNS))
        rewards = [float(row["reward"]) for row in self._rows]
        line = Text(f"reward  {_spark(rewards, max(8, self.console.width - 34))}  mean of last 10: ")
        line.append(f"{sum(rewards[-10:]) / len(rewards[-10:]):.3f}", style="bold")
        return Panel(Group(table, Text(), line, self._progress), title="phloem", title_align="left")


def _shown(metrics: Mapping[str, Any], key: str, form: str) -> str:
    value = metrics.get(key)
    return "-" if value is None or (isinstance(value, float) and math.isnan(value)) else form.format(value)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _spark(values: list[float], width: int) -> str:
    """Values as a line of bars, each bar the mean of its share of the values; NaN is left out."""
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return ""
    bins = min(width, len(known))
    means = []
    for i in range(bins):
        part = known[i * len(known) // bins : (i + 1) * len(known) // bins]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((m - low) * scale)] for m in means)
