"""How much of a group's rollouts is shared, over training and against reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phloem.means import known_mean
from phloem.studies.figures import BLUE, GREY, ORANGE, finish, panels, seeds
from phloem.studies.intervals import Estimate, mean_of_seeds
from phloem.studies.matrix import HEADLINE, STRUCTURE, readings
from phloem.studies.readings import Reading
from phloem.studies.study import Bench, Figure, Finding, Study, Verdict, not_run
from phloem.tree import PrefixTree
from phloem.tree.structure import structure

__all__ = ["STUDY"]

KEYS = ("depth", "shared", "shared_without_common")
TASKS = {"sums": "two-digit sums", "words": "word problems"}


def measure(bench: Bench) -> dict[str, Any]:
    cells = [c for c in [*STRUCTURE, *HEADLINE] if c.rule == "grpo"]
    runs = readings(bench, cells)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        kinds.setdefault(f"{TASKS[run.cell.task]}, G = {run.cell.thoughts}", []).append(_of_run(run))
    return {"kinds": kinds}


def _of_run(run: Reading) -> dict[str, Any]:
    """Raw series over steps (means over a step's groups), and figures of every group."""
    rows = []
    for step, group in run.groups():
        scored = group.scored()
        if scored.group_size > 1:
            found = structure(PrefixTree.from_group(scored))
            own = {"step": step, "reward": float(scored.rewards_R.mean()), "flat": found.flat}
            rows.append({**own, **{key: getattr(found, key) for key in KEYS}})
    steps = sorted({row["step"] for row in rows})
    series = {
        key: [float(np.nanmean([row[key] for row in rows if row["step"] == step])) for step in steps]
        for key in ("reward", "depth", "shared")
    }
    without = [[r["shared_without_common"] for r in rows if r["step"] == step] for step in steps]
    series["shared_without_common"] = [known_mean(values) for values in without]
    return {
        "seed": run.cell.seed,
        "steps": steps,
        **series,
        "groups": len(rows),
        "flat": sum(row["flat"] for row in rows),
        "by_reward": _correlation([r["reward"] for r in rows], [r["shared_without_common"] for r in rows]),
    }


def _correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's, over pairs that are known; NaN where one side does not vary."""
    a, b = np.array(x, dtype=float), np.array(y, dtype=float)
    known = ~np.isnan(a) & ~np.isnan(b)
    if known.sum() < 3 or np.ptp(a[known]) == 0 or np.ptp(b[known]) == 0:
        return float("nan")
    return float(np.corrcoef(a[known], b[known])[0, 1])


def _rise(run: Mapping[str, Any], key: str) -> float:
    """Change over the whole run by a line through the raw series."""
    y = np.array(run[key], dtype=float)
    x = np.array(run["steps"], dtype=float)
    known = ~np.isnan(y)
    if known.sum() < 2:
        return float("nan")
    return float(np.polyfit(x[known], y[known], 1)[0] * (x[known][-1] - x[known][0]))


def _risen(rises: Iterable[Estimate]) -> Verdict:
    """Confirmed where every kind of run rises, undecided where only some do, or none has two seeds."""
    up = [rise.low > 0 for rise in rises if rise.n > 1]
    if up and all(up):
        return Verdict.CONFIRMED
    return Verdict.UNDECIDED if any(up) or not up else Verdict.NOT_CONFIRMED


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    kinds = measured["kinds"]
    if not kinds:
        return [not_run("trees are hardly ever flat, and sharing rises with training", "see the paper", STUDY.name)]
    flat = {name: (sum(r["flat"] for r in runs), sum(r["groups"] for r in runs)) for name, runs in kinds.items()}
    worst = max(a / max(b, 1) for a, b in flat.values())
    rises = {name: mean_of_seeds([_rise(r, "shared") for r in runs]) for name, runs in kinds.items()}
    correlations = {name: mean_of_seeds([r["by_reward"] for r in runs]) for name, runs in kinds.items()}
    falls = [float(np.mean(np.diff(r["shared"]) < 0)) for runs in kinds.values() for r in runs if len(r["shared"]) > 1]
    return [
        Finding(
            "groups of rollouts form trees that are hardly ever flat",
            "12 of 6,700 groups flat at G = 6, 0 of 1,100 at G = 36",
            "; ".join(f"{a} of {b} flat ({name})" for name, (a, b) in flat.items()),
            Verdict.CONFIRMED if worst < 0.02 else Verdict.NOT_CONFIRMED,
            note="flat: no two rollouts part after a shared step that is not the whole group's. Rollouts that are "
            "equal up to one place, as short completions of a policy that is sure often are, make a flat tree too.",
        ),
        Finding(
            "the shared share of a completion rises during training",
            "curves that never fall",
            "; ".join(f"{name}: {e.shown('+.3f')}" for name, e in rises.items()),
            _risen(rises.values()),
            note="change over the run by a line through each raw series, mean over seeds. The runs are short.",
        ),
        Finding(
            "a raw series never falls from one step to the next",
            "curves that never fall",
            f"{np.mean(falls):.0%} of the steps fall" if falls else "no series",
            Verdict.NOT_CONFIRMED if falls and np.mean(falls) > 0.05 else Verdict.UNDECIDED,
            note="the same values sorted never fall either, by construction: the dotted line in the figure.",
        ),
        Finding(
            "groups that share more earn more",
            "-",
            "; ".join(f"{name}: correlation {e.shown('+.2f')}" for name, e in correlations.items()),
            Verdict.UNDECIDED,
            note="shared share without the step common to the whole group, against the group's mean reward, over the "
            "groups of a run. The published figures do not say; no verdict is meant.",
        ),
    ]


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    kinds = measured["kinds"]
    if not kinds:
        return []
    columns = min(2, len(kinds))
    figure, axes = panels(columns, -(-len(kinds) // columns), width=9.5, height=3.4)
    for axis, (name, runs) in zip(axes, kinds.items(), strict=False):
        for key, colour, label in (("shared", BLUE, "shared"), ("reward", ORANGE, "mean reward")):
            for i, run in enumerate(runs):
                axis.plot(run["steps"], run[key], color=colour, alpha=0.7, linewidth=1.2, label=None if i else label)
        axis.plot(runs[0]["steps"], sorted(runs[0]["shared"]), ":", color=GREY, label="shared, seed 0, sorted")
        axis.set(title=f"{name} ({seeds(len(runs))})", xlabel="step", ylim=(-0.03, 1.03))
    axes[0].set_ylabel("share of tokens; reward")
    axes[0].legend(fontsize=9)
    for axis in axes[len(kinds) :]:
        axis.set_visible(False)
    caption = (
        "Share of a completion's tokens inside a prefix shared by at least two rollouts, raw at each step (a line per "
        "seed), with the mean reward; dotted: the values of seed 0 sorted, which cannot fall."
    )
    return [Figure(finish(figure, folder / "structure.png"), caption)]


def tables(measured: Mapping[str, Any]) -> str:
    if not measured["kinds"]:
        return ""
    lines = [
        "## Figures by kind of run\n",
        "| runs | seeds | groups | flat | path depth | shared | shared without the common step |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in measured["kinds"].items():
        values = [known_mean([v for r in runs for v in r[key]]) for key in KEYS]
        groups, flat = (sum(r[key] for r in runs) for key in ("groups", "flat"))
        lines.append(f"| {name} | {len(runs)} | {groups} | {flat} | " + " | ".join(f"{v:.2f}" for v in values) + " |")
    return "\n".join(lines)


STUDY = Study(
    name="structure",
    title="Process sets in training",
    question="""
lambda-GRPO (arXiv 2509.21154) reports that groups of rollouts share prefixes: trees are hardly ever flat, paths are
deep, and the share of tokens inside shared prefixes rises. Its curves never fall, as if they had been sorted. Here the
series are raw, step by step, on SmolLM2-135M: two-digit sums and word problems, groups of 6, 16 and 36.
""",
    departures="""
- Completions have about 20 tokens on sums and up to 88 on word problems, not 1,200; the shorter, the more they share.
- The word problems pay half for the format, since so small a model hardly ever answers one.
""",
    budget="Twelve runs of a minute or two beside those of the matrix.",
    measure=measure,
    judge=judge,
    draw=draw,
    tables=tables,
)
