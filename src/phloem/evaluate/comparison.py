"""Two evaluations of the same problems under the same settings, paired by problem."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phloem.evaluate import predictions as store
from phloem.evaluate.held_out import Gain, HeldOut, paired_gain
from phloem.evaluate.identity import changes, read_identity
from phloem.evaluate.statistics import Figures
from phloem.files import to_json
from phloem.kinds import ConfigError

__all__ = ["Comparison", "Difference", "compare"]

FREE = ("model.fingerprint", "seed")
"""What two evaluations that are compared may differ in: the model is the point, and any seed is as good as another."""


@dataclass(frozen=True)
class Difference:
    """One benchmark: both means, the gain of the second over the first, and problems by whose mean is higher."""

    benchmark: str
    before: float
    after: float
    gain: Gain
    better: int
    worse: int
    equal: int
    clipped_before: float
    clipped_after: float


@dataclass(frozen=True)
class Comparison:
    """Differences by benchmark, and sentences on versions of packages that differ."""

    before: str
    after: str
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.after} against {self.before}, paired by problem; 95 % bootstrap intervals over problems",
            "",
            "| benchmark | problems | first | second | gain | better / worse / equal | clipped |",
            "|---|---|---|---|---|---|---|",
        ]
        for d in self.differences:
            lines.append(
                f"| {d.benchmark} | {d.gain.prompts} | {d.before:.3f} | {d.after:.3f} | {d.gain} | "
                f"{d.better} / {d.worse} / {d.equal} | {d.clipped_before:.1%} → {d.clipped_after:.1%} |"
            )
        return "\n".join([*lines, *(f"\nNote: {note}" for note in self.notes)])

    def to_json(self) -> str:
        return to_json(asdict(self), indent=1, ensure_ascii=False)


def compare(before: str | Path, after: str | Path) -> Comparison:
    """The paired comparison of two evaluation folders.

    Raises:
        ConfigError: a folder that is no finished evaluation, or settings, problems, wordings or graders that differ
            (each named): such figures cannot be compared.
    """
    tables = [read_identity(Path(folder)) for folder in (before, after)]
    differing = list(changes(*(_held_equal(table) for table in tables)))
    if differing:
        raise ConfigError(f"{before} and {after} cannot be compared: they differ in {'; '.join(differing)}")
    figures = [_figures(Path(folder), table) for folder, table in zip((before, after), tables, strict=True)]
    differences = tuple(_difference(name, figures[0][name], figures[1][name]) for name in tables[0]["benchmarks"])
    return Comparison(str(before), str(after), differences, tuple(_notes(*tables)))


def _held_equal(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in FREE and not name.startswith("packages.")}


def _notes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    notes = []
    if before["model.fingerprint"] == after["model.fingerprint"]:
        notes.append("both are of the same weights")
    versions = [{name: v for name, v in table.items() if name.startswith("packages.")} for table in (before, after)]
    return [*notes, *(f"versions differ: {change}" for change in changes(*versions))]


def _figures(folder: Path, table: Mapping[str, Any]) -> dict[str, Figures]:
    unfinished = ConfigError(f"{folder} is not finished: give the command that began it again, then compare")
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))["benchmarks"]
    except (OSError, ValueError, TypeError, KeyError):
        raise unfinished from None
    made = [p for p in store.read(folder / "predictions.jsonl") if len(p.samples) == table["sample.n"]]
    figures: dict[str, Figures] = {}
    for name in table["benchmarks"]:
        own = {p.id: p for p in made if p.benchmark == name}
        if name not in report or any(problem["id"] not in own for problem in report[name]["by_problem"]):
            raise unfinished
        figures[name] = Figures([own[problem["id"]] for problem in report[name]["by_problem"]], None)
    return figures


def _difference(name: str, before: Figures, after: Figures) -> Difference:
    first, second = _ordered(before.held_out), _ordered(after.held_out)
    moved = second.means_B - first.means_B
    return Difference(
        benchmark=name,
        before=first.mean,
        after=second.mean,
        gain=paired_gain(first, second),
        better=int(np.sum(moved > 0)),
        worse=int(np.sum(moved < 0)),
        equal=int(np.sum(moved == 0)),
        clipped_before=first.truncated,
        clipped_after=second.truncated,
    )


def _ordered(found: HeldOut) -> HeldOut:
    """The same by id: an evaluation that was stopped may have written its problems in another order."""
    order = sorted(range(len(found.ids)), key=lambda i: found.ids[i])
    return HeldOut(tuple(found.ids[i] for i in order), found.rewards_Bn[order], found.truncated)
