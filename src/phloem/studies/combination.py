"""lambda's weights inside GRPO-MA, and what each method does to thoughts that differ by noise alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phloem import credit, presets
from phloem.studies.figures import BLUE, GREY, RULES, finish, panels
from phloem.studies.intervals import difference, mean_of_seeds
from phloem.studies.matrix import HEADLINE, readings
from phloem.studies.readings import seed_groups
from phloem.studies.study import Bench, Figure, Finding, Study, Verdict, not_run, sided
from phloem.tree import Group

__all__ = ["STUDY", "shrinkage"]

K, M = 4, 4


def measure(bench: Bench) -> dict[str, Any]:
    draws = 500 if bench.quick else 100_000
    made = bench.piece("made", {"draws": draws}, lambda: _made(draws))
    runs = readings(bench, [c for c in HEADLINE if c.answers > 1])
    rows = [{"rule": r.cell.rule, "seed": r.cell.seed, "gain": r.gain, "last": r.last} for r in runs]
    return {"made": made, "draws": draws, "runs": rows, "groups": _groups(seed_groups(runs))}


def shrinkage(rewards: np.ndarray) -> np.ndarray:
    """s_V / s of each K x M group (first axis): what lambda-GRPO's thought advantage is of GRPO-MA's (ddof 1).

    NaN where no reward differs.
    """
    values = rewards.mean(2)
    s = rewards.reshape(len(rewards), -1).std(1, ddof=1)
    return np.divide(values.std(1, ddof=1), s, out=np.full(len(s), np.nan), where=s > 1e-12)


def _made(draws: int) -> dict[str, float]:
    """Root mean square of s_V / s where thoughts do not matter, where they differ, and where they decide the answer."""
    rng = np.random.default_rng(0)
    cases = {
        "do not matter": np.full((draws, K), 0.5),
        "differ": rng.random((draws, K)),
        "decide": rng.integers(0, 2, (draws, K)).astype(float),
    }
    return {
        name: float(np.sqrt(np.nanmean(shrinkage((rng.random((draws, K, M)) < v[:, :, None]).astype(float)) ** 2)))
        for name, v in cases.items()
    }


def _groups(groups: Sequence[Group]) -> dict[str, Any]:
    """On full K x M groups with a spread: predicted and measured ratio of thought credit; repeated answer tokens."""
    rewards, ratios, repeated, tokens = [], [], 0, 0
    for group in groups:
        levels = np.asarray(group.levels_S)
        if group.group_size != K * M or (levels == 1).sum() != K or np.ptp(group.rewards_R) == 0:
            continue
        own = credit.assign(group, presets.get("grpo-ma", eps=0.0))
        answers_E = own.branches.level_B[own.branches.entry_branch_E] == 2
        repeated += int((own.count_E[answers_E] > 1).sum())
        tokens += int(answers_E.sum())
        rewards.append(group.rewards_R.reshape(K, M))
        thoughts = own.advantage_B[own.branches.level_B == 1]
        lam = (group.rewards_R.reshape(K, M).mean(1) - group.rewards_R.mean()) / group.rewards_R.std(ddof=1)
        ratios.append(float(np.linalg.norm(lam) / np.linalg.norm(thoughts)) if thoughts.any() else 0.0)
    if not rewards:
        return {"groups": 0}
    stack = np.stack(rewards)
    within = stack.var(2, ddof=1).mean(1)
    noise = stack.mean(2).var(1, ddof=1) <= within / M
    predicted = shrinkage(stack)
    return {
        "groups": len(rewards),
        "noise": int(noise.sum()),
        "largest_deviation": float(np.abs(predicted - ratios).max()),
        "measured": ratios,
        "between_share": 1 - within / stack.reshape(len(stack), -1).var(1, ddof=1),
        "ratio_noise": float(np.mean(np.array(ratios)[noise])) if noise.any() else None,
        "ratio_rest": float(np.mean(np.array(ratios)[~noise])) if (~noise).any() else None,
        "repeated": repeated / max(tokens, 1),
    }


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    made, groups = measured["made"], measured["groups"]
    decided = np.sqrt((K * M - 1) / ((K - 1) * M))
    exact = abs(made["do not matter"] - 1 / np.sqrt(M)) < 0.05 and abs(made["decide"] - decided) < 0.01
    findings = [
        Finding(
            "lambda-GRPO shrinks thoughts that do not matter by 1/sqrt(M); GRPO-MA scales them back to unit variance",
            f"- (predicted {1 / np.sqrt(M):.2f} and {decided:.2f})",
            f"s_V/s {made['do not matter']:.3f} where thoughts do not matter, {made['differ']:.3f} where they differ, "
            f"{made['decide']:.3f} where they decide ({measured['draws']:,} simulated 4 x 4 groups, right or wrong)",
            Verdict.CONFIRMED if exact else Verdict.NOT_CONFIRMED,
            note="sample standard deviations, so the last is above 1.",
        )
    ]
    findings += _group_findings(groups)
    claim = "lambda's weights improve GRPO-MA"
    one, two = ([r["gain"] for r in measured["runs"] if r["rule"] == rule] for rule in ("grpo-ma", "lambda-grpo-ma"))
    if not one or not two:
        return [*findings, not_run(claim, "- (not combined)", "combination")]
    gap = difference(one, two)
    findings.append(
        Finding(
            claim,
            "- (not combined)",
            f"gain {np.mean(one):+.3f} and {np.mean(two):+.3f} with the weights; difference {gap.shown('+.3f')}",
            sided(gap, 1),
            note="held-out reward at equal sampled tokens, 4 x 4.",
        )
    )
    return findings


def _group_findings(groups: Mapping[str, Any]) -> list[Finding]:
    claim = "on real groups lambda's thought advantages are GRPO-MA's times s_V/s"
    if not groups["groups"]:
        return [not_run(claim, "- (derived)", "combination")]
    worst = groups["largest_deviation"]
    apart = [groups["ratio_noise"], groups["ratio_rest"]]
    shown = [("-" if value is None else f"{value:.2f}") for value in apart]
    return [
        Finding(
            claim,
            "- (derived)",
            f"largest deviation {worst:.1e} over {groups['groups']} groups; ratio {shown[0]} in the {groups['noise']} "
            f"whose thoughts differ by no more than their answers' noise, {shown[1]} in the others",
            Verdict.CONFIRMED if worst < 1e-6 else Verdict.NOT_CONFIRMED,
            note="noise: the variance of the values is at most that within thoughts over M.",
        ),
        Finding(
            "answers of one thought repeat tokens, so the frequency flaw survives in GRPO-MA's answers",
            "- (derived)",
            f"{groups['repeated']:.0%} of answer tokens are shared with another answer of the level",
            Verdict.CONFIRMED if groups["repeated"] > 0.05 else Verdict.NOT_CONFIRMED,
        ),
    ]


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    figure, (left, right) = panels(2, width=9.5)
    groups = measured["groups"]
    if groups["groups"]:
        left.plot(groups["between_share"], groups["measured"], ".", color=BLUE, alpha=0.5, label="real groups")
    made = measured["made"]
    for name, style in (("do not matter", ":"), ("differ", "--"), ("decide", "-")):
        left.axhline(made[name], color=GREY, linestyle=style, label=f"simulated: thoughts {name}")
    left.set(xlabel="share of the variance between thoughts", ylabel="ratio of thought advantages", ylim=(0, 1.3))
    left.legend(fontsize=9)
    for i, rule in enumerate(("grpo-ma", "lambda-grpo-ma")):
        gains = [r["gain"] for r in measured["runs"] if r["rule"] == rule]
        colour, marker, _ = RULES[rule]
        if gains:
            right.plot([i] * len(gains), gains, marker, color=colour, alpha=0.5)
            right.plot([i - 0.1, i + 0.1], [mean_of_seeds(gains).value] * 2, color=colour, linewidth=3)
    right.set_xticks([0, 1], ["GRPO-MA", "lambda-GRPO-MA"])
    right.set_xlim(-0.6, 1.6)
    right.axhline(0, color="black", linewidth=0.7)
    right.set_title("gain in held-out reward, a point per seed")
    caption = (
        "Left: lambda-GRPO's advantage of a thought over GRPO-MA's; right: what the weights do to GRPO-MA's result."
    )
    return [Figure(finish(figure, folder / "combination.png"), caption)]


STUDY = Study(
    name="combination",
    title="lambda inside GRPO-MA, and noise thoughts",
    question="""
On one K x M tree, lambda-GRPO's advantage of a thought is GRPO-MA's times s_V/s: the spread of the thoughts' values
over that of all rewards. Where thoughts do not matter, the first shrinks their noise and the second scales it up to
unit variance. Predicted, simulated, measured on real groups; and the two combined, at equal sampled tokens.
""",
    departures="",
    budget="Six runs of the matrix.",
    measure=measure,
    judge=judge,
    draw=draw,
)
