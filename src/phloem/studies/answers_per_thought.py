"""How many answers should a thought have? At equal sampled tokens and at equal time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phloem.studies.figures import BLUE, ORANGE, finish, panels, seeds
from phloem.studies.intervals import difference, mean_of_seeds
from phloem.studies.matrix import ANSWERS, HEADLINE, SHAPES, readings
from phloem.studies.readings import Reading
from phloem.studies.study import Bench, Figure, Finding, Study, Verdict, not_run, sided

__all__ = ["STUDY"]

FOUR = tuple(f"T4A{m}" for m in (1, 2, 4, 6, 8))
SPLITS = ("T16A1", "T8A2", "T4A4", "T2A8")


def measure(bench: Bench) -> dict[str, Any]:
    wanted = {*FOUR, *SPLITS}
    cells = [c for c in [*HEADLINE, *ANSWERS, *SHAPES] if c.rule == "grpo-ma" and c.shape in wanted]
    runs = readings(bench, cells)
    if not runs:
        return {"runs": [], "common_seconds": None}
    common = min(float(run.seconds[-1]) for run in runs)
    rows = [
        {
            "shape": r.cell.shape,
            "seed": r.cell.seed,
            "gain": r.gain,
            "seconds": float(r.seconds[-1]),
            "tokens": int(r.tokens[-1]),
            "gain_at_time": _gain_at(r, common),
        }
        for r in runs
    ]
    return {"runs": rows, "common_seconds": common}


def _gain_at(run: Reading, seconds: float) -> float:
    """Held-out gain after so many seconds of training, on the line between evaluations."""
    x = [run.seconds_at(e["step"]) for e in run.evaluations]
    y = [e["reward"] for e in run.evaluations]
    return float(np.interp(seconds, x, y)) - y[0]


def _of(measured: Mapping[str, Any], shape: str, key: str = "gain") -> list[float]:
    return [float(r[key]) for r in measured["runs"] if r["shape"] == shape]


def _shown(measured: Mapping[str, Any], shapes: Sequence[str], key: str) -> str:
    parts = [(shape, mean_of_seeds(_of(measured, shape, key))) for shape in shapes]
    return ", ".join(f"{shape} {e.value:+.3f} ({e.n})" for shape, e in parts if e.n)


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    findings = []
    claim, published = "more answers per thought improve the result (K = 4)", "rises with M, dips at M = 6"
    present = [shape for shape in FOUR if _of(measured, shape)]
    if len(present) < 3:
        findings.append(not_run(claim, published, "answers-per-thought"))
    else:
        for key, what in (("gain", "equal sampled tokens"), ("gain_at_time", "equal time")):
            gap = difference(_of(measured, present[0], key), _of(measured, present[-1], key))
            findings.append(
                Finding(
                    f"{claim}, at {what}",
                    published,
                    f"gain by shape (seeds): {_shown(measured, present, key)}; {present[-1]} minus {present[0]} "
                    f"{gap.shown('+.3f')}",
                    sided(gap, 1),
                )
            )
    claim, published = "T4A4 is as good as T16A1 on the same number of rollouts", "comparable"
    one, two = _of(measured, "T16A1"), _of(measured, "T4A4")
    if not one or not two:
        return [*findings, not_run(claim, published, "answers-per-thought")]
    gap = difference(one, two)
    close = gap.n > 1 and -0.05 < gap.low and gap.high < 0.05
    findings.append(
        Finding(
            claim,
            published,
            f"gain by shape (seeds): {_shown(measured, SPLITS, 'gain')}; T4A4 minus T16A1 {gap.shown('+.3f')}",
            Verdict.CONFIRMED if close else Verdict.UNDECIDED,
            note="both under GRPO-MA, at equal sampled tokens. Comparable is read as an interval within .05.",
        )
    )
    return findings


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    if not measured["runs"]:
        return []
    figure, axes = panels(2, width=9.5)
    for axis, shapes, title in ((axes[0], FOUR, "4 thoughts"), (axes[1], SPLITS, "16 rollouts")):
        present = [shape for shape in shapes if _of(measured, shape)]
        for j, (key, colour, marker, label) in enumerate(
            (("gain", BLUE, "o", "equal sampled tokens"), ("gain_at_time", ORANGE, "s", "equal time"))
        ):
            for i, shape in enumerate(present):
                values, x = _of(measured, shape, key), i + 0.2 * (j - 0.5)
                axis.plot([x] * len(values), values, marker, color=colour, alpha=0.4, markersize=5)
                axis.plot(
                    [x - 0.08, x + 0.08], [np.mean(values)] * 2, color=colour, linewidth=3, label=None if i else label
                )
        names = [f"{shape}\n{seeds(len(_of(measured, shape)))}" for shape in present]
        axis.set_xticks(range(len(present)), names, fontsize=10)
        axis.axhline(0, color="black", linewidth=0.7)
        axis.set_title(title)
    axes[0].set_ylabel("gain in held-out reward")
    axes[0].legend()
    caption = (
        f"Gain in held-out reward by shape under GRPO-MA; points are seeds, bars their means. {_seconds(measured)}"
    )
    return [Figure(finish(figure, folder / "answers-per-thought.png"), caption)]


def _seconds(measured: Mapping[str, Any]) -> str:
    return f"Equal time is {measured['common_seconds']:.0f} s of training, on the line between evaluations."


STUDY = Study(
    name="answers-per-thought",
    title="Answers per thought",
    question="""
GRPO-MA (arXiv 2509.24494): more answers per thought judge it better and improve the result; 4 thoughts with 4 answers
are comparable to 16 rollouts. K = 4 with 1 to 8 answers, and the ways to split 16 rollouts, all under GRPO-MA's credit.
""",
    departures="""
- The published curve is at equal steps; more answers then cost more tokens. Here budgets are equal in sampled tokens,
  and once more in seconds.
""",
    budget="27 runs of the matrix.",
    measure=measure,
    judge=judge,
    draw=draw,
)
