"""lambda-GRPO's theorem: GRPO is a process reward model. Where that is exact, where it breaks, by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from phloem.studies.figures import BLUE, ORANGE, finish, panels
from phloem.studies.made_groups import made_groups
from phloem.studies.matrix import HEADLINE, readings
from phloem.studies.readings import seed_groups
from phloem.studies.study import Bench, Figure, Finding, Study, Verdict
from phloem.tree import Group, PrefixTree

__all__ = ["STUDY", "gap"]

Mean = Literal["token", "sequence"]
CLIP = 0.2
MOVES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Standard deviations of the log-ratio between the policy now and at sampling."""


def gap(group: Group, mean: Mean, move: float, clip: float | None, seed: int) -> float:
    """Relative distance between the gradients of the outcome and the process-reward objective on one group.

    Any policy's gradient is a sum over distinct tokens of a coefficient times d log pi(token), so the two objectives
    agree for every policy iff their coefficients do; the distance is |outcome - process| / |outcome| over tokens.

    Args:
        group: all scored.
        mean: of the loss: over all tokens of the group, or over the tokens of each rollout and then over rollouts.
        move: standard deviation of the log-ratio of each distinct token.
        clip: both bounds of the ratio; None: not clipped.
        seed: of the ratios.
    """
    tree = PrefixTree.from_group(group)
    r = group.rewards_R
    scale = r.std(ddof=1)
    outcome_R = (r - r.mean()) / scale
    cover_T = np.bincount(tree.row_index, minlength=len(tree))
    sizes_R = np.diff(tree.row_offset)
    value_T = np.bincount(tree.row_index, np.repeat(r, sizes_R), minlength=len(tree)) / np.maximum(cover_T, 1)
    ratio_T = np.exp(move * np.random.default_rng(seed).standard_normal(len(tree)))
    weight_R = np.full(len(r), 1 / len(tree.row_index)) if mean == "token" else 1 / (len(r) * np.maximum(sizes_R, 1))
    outcome_T, process_T = np.zeros(len(tree)), np.zeros(len(tree))
    for i, a in enumerate(outcome_R):
        row = tree.row(i)
        outcome_T[row] += weight_R[i] * _slope(ratio_T[row], np.full(len(row), a), clip)
        process_T[row] += weight_R[i] * _slope(ratio_T[row], (value_T[row] - r.mean()) / scale, clip)
    return float(np.linalg.norm(outcome_T - process_T) / max(np.linalg.norm(outcome_T), 1e-300))


def _slope(ratio: np.ndarray, advantage: np.ndarray, clip: float | None) -> np.ndarray:
    """d/d log pi of min(rho A, clip(rho) A)."""
    if clip is None:
        return ratio * advantage
    moves = np.where(advantage > 0, ratio <= 1 + clip, ratio >= 1 - clip)
    return np.where(moves, ratio * advantage, 0.0)


def _gaps(groups: Sequence[Group]) -> dict[str, list[float]]:
    """Every case's gaps over the groups."""
    cases: dict[str, tuple[Mean, float, float | None]] = {
        "one update, clipped": ("token", 0.0, CLIP),
        "further updates, not clipped": ("token", 0.4, None),
        "sequence mean": ("sequence", 0.0, None),
        **{f"clipped, move {move:g}": ("token", move, CLIP) for move in MOVES},
    }
    return {name: [gap(g, *case, seed=i) for i, g in enumerate(groups)] for name, case in cases.items()}


def measure(bench: Bench) -> dict[str, Any]:
    number = 20 if bench.quick else 500
    made = bench.piece("made", {"groups": number}, lambda: _summaries(_gaps(made_groups(number, 0))))
    runs = readings(bench, [c for c in HEADLINE if c.rule == "grpo"])
    real = [g for g in seed_groups(runs) if np.ptp(g.rewards_R) > 0]
    found = {"made": made, "made_groups": number, "real_groups": len(real), "real_runs": len(runs)}
    return {**found, "real": _summaries(_gaps(real)) if real else None}


def _summaries(gaps: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "median": float(np.median(values)),
            "low": float(np.quantile(values, 0.1)),
            "high": float(np.quantile(values, 0.9)),
            "max": float(np.max(values)),
            "above_percent": float(np.mean(np.array(values) > 0.01)),
        }
        for name, values in gaps.items()
    }


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    def both(case: str, form: str) -> str:
        parts = [f"{form.format(**measured['made'][case])} ({measured['made_groups']} random groups)"]
        if measured["real"]:
            parts.append(f"{form.format(**measured['real'][case])} ({measured['real_groups']} groups of real runs)")
        return "; ".join(parts)

    def holds(case: str) -> Verdict:
        worst = max(part[case]["max"] for part in (measured["made"], measured["real"]) if part)
        return Verdict.CONFIRMED if worst < 1e-12 else Verdict.NOT_CONFIRMED

    def breaks(case: str) -> Verdict:
        share = measured["made"][case]["above_percent"]
        return Verdict.CONFIRMED if share > 0.5 else Verdict.NOT_CONFIRMED

    return [
        Finding(
            "with the token mean and one update a batch, GRPO is the process-reward objective",
            "theorem",
            both("one update, clipped", "largest gap {max:.1e}"),
            holds("one update, clipped"),
        ),
        Finding(
            "it also holds for further updates if nothing is clipped",
            "- (not stated)",
            both("further updates, not clipped", "largest gap {max:.1e}"),
            holds("further updates, not clipped"),
        ),
        Finding(
            "under clipping it breaks once the policy has moved",
            "- (left out: one update)",
            both("clipped, move 0.2", "median gap {median:.2f}, above 1 % in {above_percent:.0%} of groups"),
            breaks("clipped, move 0.2"),
            note="log-ratios of standard deviation .2, clip .2. A min depends on the sign of the advantage it bounds, "
            "and rollouts through one token differ in it.",
        ),
        Finding(
            "with the mean over each sequence it breaks at the first update",
            "- (left out)",
            both("sequence mean", "median gap {median:.2f}, above 1 % in {above_percent:.0%} of groups"),
            breaks("sequence mean"),
            note="a token shared by rollouts of different lengths is weighed differently in each. The published code "
            "takes this mean by default.",
        ),
    ]


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    figure, (axis,) = panels(1, height=4.0)
    for part, colour, marker, label in (
        ("made", BLUE, "o", f"{measured['made_groups']} random groups"),
        ("real", ORANGE, "s", f"{measured['real_groups']} groups of real runs"),
    ):
        if not measured[part]:
            continue
        rows = [measured[part][f"clipped, move {move:g}"] for move in MOVES]
        axis.plot(MOVES, [r["median"] for r in rows], color=colour, marker=marker, label=label)
        low, high = ([r[k] for r in rows] for k in ("low", "high"))
        axis.fill_between(MOVES, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set(xlabel="standard deviation of the log-ratio (nats)", ylabel="relative gap of the gradients")
    axis.legend(title="clip .2; bands: 10 to 90 % of groups")
    caption = "Distance between GRPO's gradient and that of its process-reward form as the policy moves from sampling."
    return [Figure(finish(figure, folder / "equivalence.png"), caption)]


STUDY = Study(
    name="equivalence",
    title="GRPO as a process reward model",
    question="""
Theorem of lambda-GRPO (arXiv 2509.21154): with the loss divided by all tokens and one update a batch, GRPO's objective
equals one in which each token's advantage is that of its process set, the completions that share the prefix up to it.
It is tested on coefficients: any policy's gradient is a sum over the tree's distinct tokens of a coefficient times the
gradient of that token's log-probability, so equal coefficients mean equal gradients for every policy. The gap is their
distance relative to GRPO's norm.
""",
    departures="",
    budget="Seconds, beside the runs of the shared matrix that the real groups come from.",
    measure=measure,
    judge=judge,
    draw=draw,
)
