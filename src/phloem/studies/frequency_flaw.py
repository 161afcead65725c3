"""The frequency flaw: how often GRPO pushes down a prefix of a group's best rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phloem import credit, presets
from phloem.studies.figures import RULES, finish, panels
from phloem.studies.intervals import wilson
from phloem.studies.made_groups import made_groups
from phloem.studies.matrix import HEADLINE, readings
from phloem.studies.readings import seed_groups
from phloem.studies.study import Bench, Figure, Finding, Study, Verdict
from phloem.tree import Group

__all__ = ["STUDY", "pushed_down", "worked_example"]

PLAIN = ("grpo", "lambda-grpo", "lambda-grpo-sn")
REWARDS = (0.5, 0.5, 1.0, 0.0, 0.0, 0.5)
PUBLISHED = (0.221, 0.221, 1.550, -1.107, -1.107, 0.221)


def worked_example() -> dict[str, Any]:
    """The paper's group of six: three share the prefix JKL, and the best of the group, JKLM, is one of them."""
    completions = ["AB", "CD", "JKLM", "JKLN", "JKLO", "EF"]
    rows = [[ord(letter) for letter in text] for text in completions]
    group = Group.from_rollouts([0], rows, REWARDS)
    advantages = credit.assign(group, presets.get("grpo", eps=0.0)).advantage_B
    found: dict[str, Any] = {"advantages": advantages.tolist()}
    for rule in PLAIN:
        assigned = credit.assign(group, presets.get(rule, eps=0.0))
        row = assigned.tree.row(2)
        net = (assigned.c_pos_T + assigned.c_neg_T)[row]
        found[rule] = {"on JKL": float(net[:3].sum()), "on M": float(net[3])}
    shared = (group.rewards_R[2:5].mean() - group.rewards_R.mean()) / group.rewards_R.std(ddof=1)
    return found | {"advantage of JKL": float(shared)}


def pushed_down(groups: Sequence[Group], rule: str) -> dict[str, Any]:
    """How a rule treats the prefixes of best rollouts.

    Returns:
        groups: with a spread of rewards. flawed: those in which a token of a best rollout has a credit below 0.
        tokens: share of the distinct tokens of best rollouts with a credit below 0.
        down, up: sums of the credit below and above 0 on those tokens, each in units of the group's total |credit|,
        as means over groups.
    """
    flawed, tokens, down, up = [], [], [], []
    for group in groups:
        assigned = credit.assign(group, presets.get(rule))
        rewards = assigned.tree.group.rewards_R
        best = np.flatnonzero(rewards == rewards.max())
        index = np.unique(np.concatenate([assigned.tree.row(int(r)) for r in best]))
        net_T = assigned.c_pos_T + assigned.c_neg_T
        net, whole = net_T[index], max(np.abs(net_T).sum(), 1e-300)
        below = net < -1e-9 * np.abs(net_T).max(initial=0)  # sums that cancel leave rounding
        flawed.append(bool(below.any()))
        tokens.append(below.mean())
        down.append(-net[below].sum() / whole)
        up.append(net[~below].sum() / whole)
    means = {name: float(np.mean(values)) for name, values in (("tokens", tokens), ("down", down), ("up", up))}
    return {"groups": len(groups), "flawed": int(np.sum(flawed)), **means}


def measure(bench: Bench) -> dict[str, Any]:
    number = 20 if bench.quick else 500
    cells = [c for c in HEADLINE if c.rule in ("grpo", "grpo-ma")]
    runs = readings(bench, cells)
    found: dict[str, Any] = {"example": worked_example(), "runs": len(runs), "sets": {}}
    sets: dict[str, list[Group]] = {"random groups": made_groups(number, 1)}
    for rule, shape in (("grpo", "T16A1"), ("grpo-ma", "T4A4")):
        mine = [r for r in runs if r.cell.rule == rule]
        groups = [g for g in seed_groups(mine) if np.ptp(g.rewards_R) > 0]
        if groups:
            sets[f"two-digit sums, {shape}"] = groups
    for name, groups in sets.items():
        rules = (*PLAIN, "grpo-ma", "lambda-grpo-ma") if name.endswith("T4A4") else PLAIN
        found["sets"][name] = {rule: pushed_down(groups, rule) for rule in rules}
    return found


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    example = measured["example"]
    exact = np.allclose(example["advantages"], PUBLISHED, atol=5e-4) and example["grpo"]["on JKL"] < 0
    findings = [
        Finding(
            "worked example: JKL, the prefix of the best rollout, is pushed down three times",
            "-.221 at JKL, advantages .221 .221 1.550 -1.107 -1.107 .221",
            f"{example['advantage of JKL']:+.3f} at JKL, advantages "
            + " ".join(f"{a:.3f}" for a in example["advantages"]),
            Verdict.CONFIRMED if exact else Verdict.NOT_CONFIRMED,
            note="published advantages are those of the paper's definition; credit on JKL is "
            f"{example['grpo']['on JKL']:+.4f} under GRPO and {example['lambda-grpo']['on JKL']:+.4f} under "
            "lambda-GRPO, a third, with the same sign.",
        )
    ]
    real = {name: rules for name, rules in measured["sets"].items() if name != "random groups"}
    for name, rules in measured["sets"].items():
        grpo, lam = rules["grpo"], rules["lambda-grpo"]
        share = wilson(grpo["flawed"], grpo["groups"])
        if name in real:
            findings.append(
                Finding(
                    f"on real groups a prefix of a best rollout is often pushed down ({name})",
                    "- (no count)",
                    f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}] of {grpo['groups']} groups with a spread; "
                    f"{grpo['tokens']:.0%} of the best rollouts' tokens",
                    Verdict.CONFIRMED if share.low > 0.1 else Verdict.NOT_CONFIRMED,
                    note="`often` is read as more than a tenth of the groups. Groups of one run are not independent, "
                    "so the interval is too narrow.",
                )
            )
        findings.append(
            Finding(
                f"lambda-GRPO mitigates the push ({name})",
                "mitigated",
                f"its share of all credit falls from {grpo['down']:.3f} to {lam['down']:.3f}; it is there in "
                f"{lam['flawed']} of {lam['groups']} groups, as under GRPO",
                Verdict.CONFIRMED if lam["down"] < 0.8 * grpo["down"] else Verdict.NOT_CONFIRMED,
                note="mitigated, not removed: dividing by |lambda| changes no sign, so the same prefixes are pushed "
                "down, |lambda| times less. Mitigated is read as a fall by a fifth.",
            )
        )
    if not real:
        findings.append(
            Finding(
                "on real groups a prefix of a best rollout is often pushed down",
                "- (no count)",
                "-",
                Verdict.NOT_RUN,
                recipe="phloem study matrix frequency-flaw",
            )
        )
    return findings


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    sets = measured["sets"]
    figure, axes = panels(2, width=9.5)
    for axis, key, title in (
        (axes[0], "flawed", "groups with a pushed prefix (share)"),
        (axes[1], "down", "push on best rollouts (share of |credit|)"),
    ):
        for i, rules in enumerate(sets.values()):
            for j, (rule, row) in enumerate(rules.items()):
                colour, _, label = RULES[rule]
                x = i + 0.16 * (j - (len(rules) - 1) / 2)
                y = row["flawed"] / row["groups"] if key == "flawed" else row["down"]
                seen = label in axis.get_legend_handles_labels()[1]
                axis.bar(x, y, 0.14, color=colour, label=None if seen else label)
        axis.set_xticks(range(len(sets)), [name.replace(", ", "\n") for name in sets])
        axis.set_title(title)
    axes[1].legend()
    caption = (
        "How often, and how hard, rules push down a prefix of a group's best rollout: "
        + ", ".join(f"{next(iter(rules.values()))['groups']} {name}" for name, rules in sets.items())
        + "."
    )
    return [Figure(finish(figure, folder / "frequency-flaw.png"), caption)]


STUDY = Study(
    name="frequency-flaw",
    title="The frequency flaw",
    question="""
A process step counts in GRPO's loss as often as rollouts pass through it: |lambda| times its advantage. A prefix whose
rollouts are worse than the group's mean is pushed down that many times, even where it leads to the best rollout of the
group (arXiv 2509.21154, worked example). How often does that happen on real groups, and what do the weights change?
""",
    departures="",
    budget="Seconds, beside the runs of the shared matrix that the real groups come from.",
    measure=measure,
    judge=judge,
    draw=draw,
)
