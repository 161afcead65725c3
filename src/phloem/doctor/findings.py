"""What an examination says, and how it is shown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Finding", "Level", "Report", "fail", "ok", "some", "warn"]

SHOWN = 20
"""Rows that are listed one by one; of more, the number is given."""
PROMPT_LINES = 16


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """Worth a look; a run would go on."""
    FAIL = "fail"
    """Unusable: training would stop, or part of it would be in vain."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: under which topic, what was found, what to do, and the rows concerned."""

    level: Level
    topic: str
    sentence: str
    remedy: str = ""
    rows: tuple[str, ...] = ()


def ok(topic: str, sentence: str) -> Finding:
    return Finding(Level.OK, topic, sentence)


def warn(topic: str, sentence: str, remedy: str = "", rows: Sequence[str] = ()) -> Finding:
    return Finding(Level.WARN, topic, sentence, remedy, tuple(rows))


def fail(topic: str, sentence: str, remedy: str = "", rows: Sequence[str] = ()) -> Finding:
    return Finding(Level.FAIL, topic, sentence, remedy, tuple(rows))


def some(rows: Sequence[str]) -> tuple[str, ...]:
    """The first rows, and how many others there are."""
    more = len(rows) - SHOWN
    return (*rows[:SHOWN], f"... and {more} more") if more > 0 else tuple(rows)


@dataclass(frozen=True)
class Report:
    """What was found, in the order of looking.

    `prompt` is the first training prompt as the model is given it, special tokens shown; None where there is none.
    """

    title: str
    findings: tuple[Finding, ...]
    prompt: str | None = None

    def of(self, level: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level is level]

    @property
    def ok(self) -> bool:
        """Whether nothing is unusable."""
        return not self.of(Level.FAIL)

    def __str__(self) -> str:
        lines = [self.title, ""]
        for finding in self.findings:
            lines.append(f"{finding.level:<4}  {finding.topic:<8}  {finding.sentence}")
            lines += [f"{'':16}{line}" for line in _below(finding)]
        if self.prompt is not None:
            lines += ["", "the first prompt, as the model reads it:", *(f"  | {line}" for line in self._prompt_lines())]
        return "\n".join([*lines, "", self._verdict()])

    def __rich__(self) -> Any:
        """The same for a terminal: `rich.print(report)`."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        colours = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
        table = Table.grid(padding=(0, 2))
        for finding in self.findings:
            said = Text(finding.sentence)
            for line in _below(finding):
                said.append(f"\n{line}", style="dim")
            table.add_row(Text(finding.level, style=colours[finding.level]), Text(finding.topic, style="bold"), said)
        parts: list[Any] = [Text(self.title, style="bold"), Text(), table, Text()]
        if self.prompt is not None:
            shown = Text("\n".join(self._prompt_lines()))
            parts.append(Panel(shown, title="the first prompt, as the model reads it", title_align="left"))
        worst = next((level for level in (Level.FAIL, Level.WARN) if self.of(level)), Level.OK)
        return Group(*parts, Text(self._verdict(), style=colours[worst]))

    def _prompt_lines(self) -> list[str]:
        lines = [part for line in (self.prompt or "").split("\n") for part in textwrap.wrap(line, 110) or [""]]
        cut = len(lines) - PROMPT_LINES
        if cut <= 0:
            return lines
        half = PROMPT_LINES // 2
        return [*lines[:half], f"... {cut} lines ...", *lines[-half:]]

    def _verdict(self) -> str:
        counts = [f"{len(found)} {word}" for word, found in self._counted() if found]
        return ", ".join(counts) if counts else "all is well"

    def _counted(self) -> list[tuple[str, list[Finding]]]:
        return [("unusable", self.of(Level.FAIL)), ("worth a look", self.of(Level.WARN))]


def _below(finding: Finding) -> list[str]:
    return [*finding.rows, *([f"-> {finding.remedy}"] if finding.remedy else [])]
