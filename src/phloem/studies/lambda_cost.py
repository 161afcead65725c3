"""What the weights cost: seconds per token of building the tree and assigning credit, against a training step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from phloem import credit, presets
from phloem.studies.figures import GREY, finish, panels
from phloem.studies.figures import RULES as STYLE
from phloem.studies.made_groups import made_group
from phloem.studies.matrix import HEADLINE, readings
from phloem.studies.study import Bench, Figure, Finding, Study, Verdict
from phloem.tree import Group, PrefixTree

__all__ = ["STUDY"]

PUBLISHED = 1.2e-7
"""CPU seconds per token."""
RULES = ("grpo", "lambda-grpo")


def measure(bench: Bench) -> dict[str, Any]:
    shapes = [(6, 50), (16, 100)] if bench.quick else [(g, n) for g in (6, 16, 36, 64) for n in (100, 300, 1200)]
    rounds = 3 if bench.quick else 15
    timings = [
        bench.piece(f"group{size}x{length}", {"rounds": rounds}, lambda s=size, n=length: _timing(s, n, rounds))
        for size, length in shapes
    ]
    runs = readings(bench, [c for c in HEADLINE if c.rule == "lambda-grpo"])
    step = None
    if runs:
        own = [_credit_of_run(run) for run in runs]
        seconds, tokens = sum(r.seconds[-1] for r in runs), sum(r.series("Z").sum() for r in runs)
        step = {
            "runs": len(runs),
            "seconds per token": float(seconds / tokens),
            "credit per token": float(np.mean(own)),
        }
    return {"timings": timings, "step": step}


def _timing(size: int, length: int, rounds: int) -> dict[str, Any]:
    """Median seconds per sampled token, rules taken in turn within each round."""
    group = made_group(np.random.default_rng(0), size, length, vocabulary=50)
    Z = PrefixTree.from_group(group).Z
    seconds: dict[str, list[float]] = {"tree": [], **{rule: [] for rule in RULES}}
    for _ in range(rounds):
        started = perf_counter()
        tree = PrefixTree.from_group(group)
        seconds["tree"].append(perf_counter() - started)
        for rule in RULES:
            chosen = presets.get(rule)
            started = perf_counter()
            credit.assign(group, chosen, tree=tree)
            seconds[rule].append(perf_counter() - started)
    return {"size": size, "length": length, "Z": Z, **{name: float(np.median(s)) / Z for name, s in seconds.items()}}


def _credit_of_run(run: Any) -> float:
    """Seconds per sampled token of tree and lambda credit on the groups of a run's last step."""
    groups: list[Group] = [g.scored() for step, g in run.groups() if step == len(run.steps)]
    rule, seconds = presets.get("lambda-grpo"), []
    for _ in range(5):
        started = perf_counter()
        tokens = sum(credit.assign(group, rule).tree.Z for group in groups)
        seconds.append((perf_counter() - started) / tokens)
    return float(np.median(seconds))


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    rows, step = measured["timings"], measured["step"]
    long = [r for r in rows if r["length"] == max(x["length"] for x in rows)]
    whole = [r["tree"] + r["lambda-grpo"] for r in long]
    extra = [r["lambda-grpo"] - r["grpo"] for r in rows]
    beside = max(extra)
    findings = [
        Finding(
            "the weights cost about 1.2e-7 CPU seconds per token",
            f"{PUBLISHED:.1e} s",
            f"{min(whole):.1e} to {max(whole):.1e} s for the tree and the whole credit of completions of "
            f"{long[0]['length']} tokens; the weights add at most {max(beside, 0):.1e} s to GRPO's credit",
            Verdict.CONFIRMED if max(whole) <= 2 * PUBLISHED else Verdict.NOT_CONFIRMED,
            note="per sampled token (Z), median of interleaved rounds. Ours counts building the prefix tree, which the "
            "update needs anyhow; confirmed means at most twice the published figure. Short groups pay for the fixed "
            "cost of a call.",
        )
    ]
    claim = "that is nothing beside a training step"
    if step is None:
        recipe = "phloem study matrix lambda-cost"
        return [*findings, Finding(claim, "negligible", "-", Verdict.NOT_RUN, recipe=recipe)]
    share = step["credit per token"] / step["seconds per token"]
    return [
        *findings,
        Finding(
            claim,
            "negligible",
            f"{share:.2%} of a step ({step['credit per token']:.1e} of {step['seconds per token']:.1e} s per sampled "
            f"token, {step['runs']} runs)",
            Verdict.CONFIRMED if share < 0.01 else Verdict.NOT_CONFIRMED,
            note="SmolLM2-135M on two CPU cores, completions of about 20 tokens. Nothing is read as under 1 %.",
        ),
    ]


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    figure, (axis,) = panels(1)
    rows = measured["timings"]
    lengths = sorted({r["length"] for r in rows})
    for length, style in zip(lengths, ("-", "--", ":"), strict=False):
        mine = [r for r in rows if r["length"] == length]
        x = [r["size"] for r in mine]
        whole = [r["tree"] + r["lambda-grpo"] for r in mine]
        axis.plot(x, whole, style, color=STYLE["lambda-grpo"][0], marker="s", label=f"tree and credit, {length} tokens")
    axis.axhline(PUBLISHED, color=GREY, label="published, weights alone")
    axis.set(xlabel="rollouts in a group", ylabel="seconds per sampled token", yscale="log", ylim=(5e-8, 6e-6))
    axis.legend(ncols=2)
    caption = "CPU seconds per sampled token of building the prefix tree and assigning lambda-GRPO's credit."
    return [Figure(finish(figure, folder / "lambda-cost.png"), caption)]


STUDY = Study(
    name="lambda-cost",
    title="What the weights cost",
    question="""
lambda-GRPO (arXiv 2509.21154) reports 1.2e-7 CPU seconds per token for its weights, by comparing prefixes in O(k^2 n)
for k completions of n tokens. Here the weights are counts on a prefix tree that is built by sorting.
""",
    departures="",
    budget="Under a minute on one core.",
    measure=measure,
    judge=judge,
    draw=draw,
)
