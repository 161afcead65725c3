"""GRPO-MA's reason for several answers: the variance of a thought's advantage, in theory and on a real model."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from phloem.studies.figures import BLUE, GREEN, GREY, ORANGE, PINK, finish, panels
from phloem.studies.study import Bench, Figure, Finding, Study, Verdict
from phloem.studies.thought_theory import binary_correlation, leading_order, simulated

__all__ = ["STUDY"]

ANCHOR = np.array([0.2, 0.4, 0.6, 0.9])
SIGMA = 0.2
K_GRID, M_GRID = (3, 4, 6, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32, 64)
SHAPES = ((4, 1), (8, 1), (16, 1), (8, 2), (4, 4), (8, 4))


def measure(bench: Bench) -> dict[str, Any]:
    draws = 2_000 if bench.quick else 400_000
    found = bench.piece("theory", {"draws": draws, "K": K_GRID, "M": M_GRID}, lambda: _theory(draws))
    from phloem.studies.thought_pool import pool, resampled

    drawn = pool(bench)
    return {**found, "draws": draws, "real": resampled(drawn)}


def _theory(draws: int) -> dict[str, Any]:
    noise = np.full(4, SIGMA**2)
    by_m = [
        {"M": M, "formula": leading_order(ANCHOR, noise, M), "simulated": simulated(ANCHOR, noise, M, draws, M)}
        for M in M_GRID
    ]
    by_k = []
    for K in K_GRID:
        v = ANCHOR.mean() + ANCHOR.std() * _standard(K)
        row: dict[str, Any] = {"K": K}
        for M in (1, 4, 16):
            row[f"formula{M}"] = float(leading_order(v, np.full(K, SIGMA**2), M).mean())
            row[f"simulated{M}"] = float(simulated(v, np.full(K, SIGMA**2), M, max(200, draws // K), 100 + K).mean())
        by_k.append(row)
    equal = [{"M": M, "simulated": float(simulated(np.full(4, 0.5), noise, M, draws, 200 + M).mean())} for M in M_GRID]
    correlation = [
        {"K": K, "M": M, "correlation": binary_correlation(K, M, max(500, draws // K), 300 + K + M)} for K, M in SHAPES
    ]
    return {"by_m": by_m, "by_k": by_k, "equal": equal, "correlation": correlation, "spread": float(ANCHOR.std())}


def _standard(K: int) -> np.ndarray:
    """K evenly spaced numbers of mean 0 and standard deviation 1 (ddof 0)."""
    steps = np.arange(K) - (K - 1) / 2
    return steps / steps.std()


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    last, first = measured["by_m"][-1], measured["by_m"][0]
    worst = max(abs(s / f - 1) for f, s in zip(last["formula"], last["simulated"], strict=True))
    at_one = max(abs(s / f - 1) for f, s in zip(first["formula"], first["simulated"], strict=True))
    m = np.log([row["M"] for row in measured["by_m"] if row["M"] >= 4])
    slope = float(np.polyfit(m, np.log([np.mean(r["simulated"]) for r in measured["by_m"] if r["M"] >= 4]), 1)[0])
    widest = measured["by_k"][-1]
    floor = widest["simulated4"] > 0.5 * next(row["simulated4"] for row in measured["by_k"] if row["K"] == 4)
    equal = [row["simulated"] for row in measured["equal"]]
    judged = {(c["K"], c["M"]): c["correlation"] for c in measured["correlation"]}
    findings = [
        Finding(
            "the variance of a thought's advantage follows the delta-method formula",
            "theorem",
            f"within {worst:.1%} at M = {last['M']}, {at_one:.0%} off at M = 1 (K = 4, {measured['draws']:,} draws)",
            Verdict.CONFIRMED if worst < 0.03 else Verdict.NOT_CONFIRMED,
            note="it is the leading order in 1/M, so it says little about one answer per thought.",
        ),
        Finding(
            "more answers: the variance falls to 0 as 1/M",
            "theorem",
            f"exponent {slope:.2f} from M = 4 to {M_GRID[-1]}",
            Verdict.CONFIRMED if abs(slope + 1) < 0.05 else Verdict.NOT_CONFIRMED,
        ),
        Finding(
            "more thoughts: the variance does not fall to 0",
            "theorem: a floor",
            f"at K = {widest['K']}: {widest['simulated1']:.3f} (M = 1), {widest['simulated4']:.3f} (M = 4); leading "
            f"order {widest['formula1']:.3f}, {widest['formula4']:.3f}",
            Verdict.CONFIRMED if floor else Verdict.NOT_CONFIRMED,
            note="with equal noise the exact floor is sigma^2/(M S^2 + sigma^2). Two thoughts always get +1 and -1.",
        ),
        Finding(
            "what the theorem leaves out: thoughts of equal value",
            "- (S > 0 assumed)",
            f"variance {equal[0]:.2f} at M = 1 and {equal[-1]:.2f} at M = {M_GRID[-1]}: no number of answers helps",
            Verdict.CONFIRMED if min(equal) > 0.95 else Verdict.NOT_CONFIRMED,
            note="confirmed is the failure: dividing by the standard deviation scales pure noise up to one.",
        ),
        Finding(
            "T4A4 judges thoughts better than T16A1",
            "T4A4 comparable to T16A1",
            "correlation with the true advantage "
            + ", ".join(f"T{c['K']}A{c['M']} {c['correlation']:.2f}" for c in measured["correlation"]),
            Verdict.CONFIRMED if judged[4, 4] > judged[16, 1] else Verdict.NOT_CONFIRMED,
            note="a simulation with right or wrong answers and thoughts of uniform value; a model's thoughts may "
            "differ less.",
        ),
    ]
    return [*findings, *_real_findings(measured["real"])]


def _real_findings(real: Mapping[str, Any] | None) -> list[Finding]:
    claim = "on a real model the measured variance of A(th) falls with M as predicted"
    if real is None:
        recipe = "phloem study thought-variance"
        return [Finding(claim, "theorem", "-", Verdict.NOT_RUN, recipe=recipe)]
    rows = [row for row in real["shapes"] if row["K"] == real["thoughts"]]
    if not rows:
        return [Finding(claim, "theorem", "no prompt whose thoughts differ in value", Verdict.UNDECIDED)]
    shown = ", ".join(f"M = {r['M']}: {r['measured']:.2f} against {r['predicted']:.2f}" for r in rows)
    falls = all(a["measured"] > b["measured"] for a, b in pairwise(rows))
    close = abs(rows[-1]["measured"] / rows[-1]["predicted"] - 1) < 0.25
    return [
        Finding(
            claim,
            "theorem",
            f"{shown} (K = {real['thoughts']}, {real['prompts']} prompts)",
            Verdict.CONFIRMED if falls and close else Verdict.NOT_CONFIRMED,
            note="confirmed means that it falls and is within a quarter of the prediction at the largest M. The "
            "leading order overstates it where the noise of answers is as large as the spread of values. "
            "SmolLM2-135M after the cold start: pools of answers to fixed thoughts, drawn from with replacement; "
            f"prediction from the pools' own means and variances. {real['prompts_left']} prompts whose thoughts have "
            "no spread in value are left out: there the formula divides by 0.",
        ),
        Finding(
            "a thought leaves its answer open, so that answers per thought have something to average",
            "- (asked by reviewers)",
            f"variance within thoughts {real['within']:.3f}, between their values {real['between']:.3f} "
            f"({real['all_prompts']} prompts)",
            Verdict.CONFIRMED if real["within"] > 0.01 else Verdict.NOT_CONFIRMED,
            note="on two-digit sums, where demonstrated thoughts restate the problem and do not solve it.",
        ),
    ]


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    figure, (left, right) = panels(2, width=9.5, height=4.2)
    rows = measured["by_m"]
    x = [r["M"] for r in rows]
    left.plot(x, [np.mean(r["formula"]) for r in rows], color=GREY, linestyle="--", label="leading order")
    left.plot(x, [np.mean(r["simulated"]) for r in rows], color=BLUE, marker="o", label="simulated")
    left.plot(x, [r["simulated"] for r in measured["equal"]], color=ORANGE, marker="s", label="thoughts of equal value")
    left.set(xscale="log", yscale="log", xlabel="answers per thought, M", ylabel="variance of A(th)", title="K = 4")
    left.legend()
    rows = measured["by_k"]
    x = [r["K"] for r in rows]
    for M, colour, marker in ((1, BLUE, "o"), (4, GREEN, "^"), (16, PINK, "v")):
        right.plot(x, [r[f"simulated{M}"] for r in rows], color=colour, marker=marker, label=f"M = {M}")
        right.plot(x, [r[f"formula{M}"] for r in rows], color=colour, linestyle="--", linewidth=1)
    right.set(xscale="log", yscale="log", xlabel="thoughts, K", title="a floor in K (dashed: leading order)")
    right.set_ylim(0.01, 1.2)
    for axis, ticks in ((left, M_GRID), (right, K_GRID)):
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
    right.legend()
    caption = (
        f"Variance of a thought's advantage: true values of standard deviation {measured['spread']:.2f}, reward noise "
        f"{SIGMA}, {measured['draws']:,} draws; mean over thoughts."
    )
    figures = [Figure(finish(figure, folder / "thought-variance.png"), caption)]
    if measured["real"] and measured["real"]["shapes"]:
        figures.append(_real_figure(measured["real"], folder))
    return figures


def _real_figure(real: Mapping[str, Any], folder: Path) -> Figure:
    figure, (axis,) = panels(1)
    for K, colour, marker in zip(sorted({r["K"] for r in real["shapes"]}), (BLUE, ORANGE, GREEN), "os^", strict=False):
        rows = [r for r in real["shapes"] if r["K"] == K]
        x = [r["M"] for r in rows]
        axis.plot(x, [r["measured"] for r in rows], color=colour, marker=marker, label=f"measured, K = {K}")
        axis.plot(x, [r["predicted"] for r in rows], color=colour, linestyle="--", linewidth=1)
    axis.set(xscale="log", yscale="log", xlabel="answers per thought, M", ylabel="variance of A(th)")
    for at, ticks in ((axis.set_xticks, (1, 2, 4, 8, 16)), (axis.set_yticks, (0.25, 0.5, 1, 2, 4, 8))):
        at(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.legend(title="dashed: leading order")
    caption = (
        f"SmolLM2-135M after the cold start, two-digit sums: variance of a fixed thought's advantage over draws of its "
        f"answers, mean over thoughts of {real['prompts']} prompts."
    )
    return Figure(finish(figure, folder / "thought-variance-real.png"), caption)


STUDY = Study(
    name="thought-variance",
    title="Variance of a thought's advantage",
    question="""
GRPO-MA (arXiv 2509.24494) judges a thought by the mean reward of M answers and proves that the variance of its
advantage falls to 0 with M but not with K. The formula (delta method, leading order in 1/M) is held against simulation,
and against a real model: many answers to fixed thoughts, drawn from again and again.
""",
    departures="""
- Standard deviations have ddof 0 here, as in the formula; in training they have ddof 1.
""",
    budget="A minute on one core for the theory, about ten for the real model's answers.",
    measure=measure,
    judge=judge,
    draw=draw,
)
