"""Gradient norms: are there fewer spikes under GRPO-MA, and do thoughts and answers pull together?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phloem.analysis.spikes import rolling_deviations, spike_scores
from phloem.studies.figures import BLUE, GREEN, ORANGE, RULES, finish, panels, seeds
from phloem.studies.intervals import difference, mean_of_seeds
from phloem.studies.matrix import HEADLINE, SHAPES, checkpoint, readings
from phloem.studies.readings import Reading, by_shape
from phloem.studies.study import Bench, Figure, Finding, Study, Verdict, not_run, sided

__all__ = ["STUDY"]

SHOWN = {("grpo", "T4A1"): (BLUE, "o"), ("grpo", "T16A1"): (ORANGE, "s"), ("grpo-ma", "T4A4"): (GREEN, "^")}
COUPLED = ("grpo", "lambda-grpo", "grpo-ma", "lambda-grpo-ma")
WINDOW = 8
LONG = "phloem train --config recipes/demo.yaml --config recipes/grpo-ma.yaml --optim.steps 1000    # and grpo.yaml"


def measure(bench: Bench) -> dict[str, Any]:
    cells = [c for c in [*HEADLINE, *SHAPES] if (c.rule, c.shape) in SHOWN]
    runs = readings(bench, cells)
    rows = []
    for (rule, shape), found in by_shape(runs).items():
        for run in found:
            norms = run.series("grad_norm")
            scores, deviations = spike_scores(norms), rolling_deviations(norms, WINDOW)
            rows.append(
                {
                    "rule": rule,
                    "shape": shape,
                    "seed": run.cell.seed,
                    "norms": norms,
                    "steps": len(norms),
                    "largest_score": float(np.nanmax(scores)),
                    "above_10": int(np.nansum(scores > 10)),
                    "above_7_deviations": int(np.nansum(deviations > 7)),
                    "watched": int((~np.isnan(deviations)).sum()),
                    "variation": float(np.nanstd(norms, ddof=1) / np.nanmean(norms)),
                }
            )
    return {"runs": rows, "coupling": _coupling(bench, readings(bench, HEADLINE))}


def _coupling(bench: Bench, runs: list[Reading]) -> list[dict[str, Any]]:
    """Cosines on the groups of first steps: those were sampled by the shared checkpoint, so all rules can be compared
    on the same groups and the same policy."""
    machine: list[Any] = []
    rows = []
    for run in [r for r in runs if r.cell.answers > 1]:
        groups = [group for step, group in run.groups() if step == 1]
        for rule in COUPLED:

            def one(groups: list[Any] = groups, rule: str = rule) -> dict[str, float] | None:
                if not machine:
                    from phloem.studies.coupling import Coupler

                    machine.append(Coupler(checkpoint(bench)))
                return machine[0].cosine(groups, rule)

            found = bench.optional_piece(f"coupling-{run.cell.name}-{rule}", {"step": 1}, one)
            if found is not None:
                rows.append({"batch": run.cell.name, "rule": rule, **found})
    return rows


def _of(measured: Mapping[str, Any], rule: str, shape: str, key: str) -> list[float]:
    return [float(r[key]) for r in measured["runs"] if (r["rule"], r["shape"]) == (rule, shape)]


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    findings = []
    claim = "GRPO-MA has fewer gradient spikes than GRPO"
    shapes = [s for s in SHOWN if _of(measured, *s, "variation")]
    if len(shapes) < 2 or ("grpo-ma", "T4A4") not in shapes:
        findings.append(not_run(claim, "lower GSS@10", "gradient-spikes"))
    else:
        spikes = "; ".join(
            f"{shape} ({rule}): {sum(_of(measured, rule, shape, 'above_10')):.0f} above 10 x mean, "
            f"{sum(_of(measured, rule, shape, 'above_7_deviations')):.0f} above 7 sd, of "
            f"{sum(_of(measured, rule, shape, 'steps')):.0f} steps"
            for rule, shape in shapes
        )
        few = "the score cannot exceed the number of steps, and a run has 10 to 45 steps: too short for rare events."
        findings.append(Finding(claim, "lower GSS@10", spikes, Verdict.UNDECIDED, note=few, recipe=LONG))
        for other in [s for s in shapes if s != ("grpo-ma", "T4A4")]:
            gap = difference(_of(measured, *other, "variation"), _of(measured, "grpo-ma", "T4A4", "variation"))
            own, than = (np.mean(_of(measured, *kind, "variation")) for kind in (("grpo-ma", "T4A4"), other))
            findings.append(
                Finding(
                    f"gradient norms vary less under GRPO-MA T4A4 than under GRPO {other[1]}",
                    "- (spikes only)",
                    f"standard deviation over mean {own:.2f} against {than:.2f}; difference {gap.shown('+.2f')}",
                    sided(gap, -1),
                )
            )
    findings.append(_coupling_finding(measured["coupling"]))
    return findings


def _coupling_finding(rows: list[dict[str, Any]]) -> Finding:
    claim = "one advantage for the whole rollout couples thoughts and answers: their gradients align more under GRPO"
    grpo, apart = ({r["batch"]: r["cosine"] for r in rows if r["rule"] == rule} for rule in ("grpo", "grpo-ma"))
    pairs = [grpo[batch] - apart[batch] for batch in grpo if batch in apart]
    if not pairs:
        return not_run(claim, "- (argued)", "gradient-spikes")
    gap = mean_of_seeds(pairs)
    shown = ", ".join(
        f"{RULES[rule][2]} {mean_of_seeds([r['cosine'] for r in rows if r['rule'] == rule]).value:+.3f}"
        for rule in COUPLED
    )
    return Finding(
        claim,
        "- (argued)",
        f"mean cosine {shown}; GRPO minus GRPO-MA {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] "
        f"({gap.n} batches, paired)",
        sided(gap, 1),
        note="the same 4 x 4 groups of the shared checkpoint under each rule; 0 is no alignment.",
    )


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    if not measured["runs"]:
        return []
    figure, (left, right) = panels(2, width=9.5)
    for (rule, shape), (colour, marker) in SHOWN.items():
        mine = [r for r in measured["runs"] if (r["rule"], r["shape"]) == (rule, shape)]
        for i, run in enumerate(mine):
            norms = np.array(run["norms"], dtype=float)
            x = np.linspace(0, 1, len(norms))
            label = None if i else f"{RULES[rule][2]} {shape} ({seeds(len(mine))})"
            left.plot(x, norms, color=colour, marker=marker, markersize=3, linewidth=1, alpha=0.8, label=label)
    left.set(xlabel="share of the run's steps", ylabel="gradient norm")
    left.legend(fontsize=9)
    for i, rule in enumerate(COUPLED):
        cosines = [r["cosine"] for r in measured["coupling"] if r["rule"] == rule]
        right.plot(i + np.linspace(-0.15, 0.15, len(cosines)), cosines, RULES[rule][1], color=RULES[rule][0])
    right.set_xticks(range(len(COUPLED)), [RULES[rule][2].replace("-GRPO", "-\nGRPO") for rule in COUPLED], fontsize=9)
    right.set(title="cosine of thoughts' and answers' gradients", ylim=(-1.05, 1.05))
    right.axhline(0, color="black", linewidth=0.7)
    caption = "Gradient norms before clipping, a line per seed; right: the coupling, a point per step of a run."
    return [Figure(finish(figure, folder / "gradient-spikes.png"), caption)]


STUDY = Study(
    name="gradient-spikes",
    title="Gradient spikes and coupling",
    question="""
GRPO-MA (arXiv 2509.24494) reports fewer gradient spikes than GRPO ("GSS@10", no formula given). Two readings: the
norm over the run's mean norm, a spike above 10 (SPAM, arXiv 2501.06842), and more than 7 standard deviations above the
8 steps before. Its argument is that one reward credited to thought and answer alike couples their gradients: the cosine
of the two is measured.
""",
    departures="",
    budget="Nine runs of the matrix, and a minute of backward passes.",
    measure=measure,
    judge=judge,
    draw=draw,
)
