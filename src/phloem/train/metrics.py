"""What a training step reports; every key stands in docs/metrics.md with its formula and unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phloem.analysis.variance import thought_variance
from phloem.loss import LossSums
from phloem.means import known_mean
from phloem.rewards.verdict import Verdict
from phloem.sample import ForkPlan
from phloem.train.step import Batch
from phloem.tree import Finish, Group
from phloem.tree.structure import structure

__all__ = ["rethinks", "shaping_metrics", "step_metrics"]


def step_metrics(
    groups: Sequence[Group],
    levels: int,
    verdicts: Sequence[Sequence[Verdict]],
    batch: Batch,
    sums: LossSums,
    norms: Sequence[float],
) -> dict[str, Any]:
    """Figures of one training step.

    Args:
        groups: with rewards.
        levels: of segments in a group in which every segment forks.
        verdicts: one per rollout of each group.
        batch: the groups' credit.
        sums: of the last update.
        norms: the gradient norm before clipping, one per update.
    """
    scored = [c for c in batch.credits if c.tree.group.group_size]
    rewards = np.concatenate([c.tree.group.rewards_R for c in scored]) if scored else np.zeros(0)
    leaves = [g.segments[leaf] for g in groups for leaf in g.leaves]
    lengths = [len(g.completion(r)) for g in groups for r in range(g.group_size)]
    variances = [thought_variance(c.tree.group) for c in scored]
    shapes = [structure(c.tree) for c in scored]
    tokens = sum(len(c.tree) for c in scored)
    rows = sum(c.tree.group.group_size * c.tree.prompt_length + len(c.tree.row_index) for c in scored)
    spread = [c for c in scored if c.branches.level_B.size]
    loss = sums.metrics() if batch.trees else dict.fromkeys(sums.metrics(), float("nan"))
    return {
        "reward": known_mean(rewards),
        "zero_spread": known_mean([c.zero_spread for c in scored]),
        "thoughts_flat": known_mean([c.level_is_flat(1) for c in spread]),
        "within_variance": known_mean([v.within for v in variances]),
        "between_variance": known_mean([v.between for v in variances]),
        "truncated": known_mean([leaf.finish is Finish.LENGTH for leaf in leaves]),
        "unforked": known_mean([g.levels_S[leaf] < levels for g in groups for leaf in g.leaves]),
        "closed_by_force": known_mean(_forced(groups, levels)),
        "completion_tokens": known_mean(lengths),
        **shaping_metrics(groups, verdicts),
        "groups": len(groups),
        "groups_trained": len(batch.trees),
        "Z": batch.totals.Z,
        "U": batch.totals.U,
        "tree_tokens": tokens,
        "token_ratio": rows / tokens if tokens else float("nan"),
        "path_depth": known_mean([s.depth for s in shapes]),
        "flat_trees": known_mean([s.flat for s in shapes]),
        "shared": known_mean([s.shared for s in shapes]),
        "shared_without_common": known_mean([s.shared_without_common for s in shapes]),
        **loss,
        "grad_norm": float(np.mean(norms)) if norms else 0.0,
        "packs": batch.pack_count,
    }


def shaping_metrics(groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """What became of the task's rewards before they were credited."""
    pairs = [
        (verdict.reward, group.segments[leaf].reward)
        for group, own in zip(groups, verdicts, strict=True)
        for leaf, verdict in zip(group.leaves, own, strict=True)
    ]
    return {
        "overlong": known_mean([after - before for before, after in pairs if before is not None and after is not None]),
        "masked": known_mean([before is not None and after is None for before, after in pairs]),
    }


def rethinks(groups: Sequence[Group], plan: ForkPlan, text: Callable[[np.ndarray], str]) -> float:
    """Share of the last level's segments whose text opens or closes a thought again; NaN where no tag forks.

    Args:
        groups: of one step.
        plan: they were sampled by.
        text: of token ids.
    """
    tags = [stage.until for stage in plan.stages if stage.until is not None]
    marks = {mark for tag in tags for mark in (tag, tag.replace("</", "<"))}
    answers = [s for g in groups for s, level in zip(g.segments, g.levels_S, strict=True) if level == len(plan.stages)]
    texts = [text(s.tokens) for s in answers] if marks else []
    return known_mean([any(mark in shown for mark in marks) for shown in texts])


def _forced(groups: Sequence[Group], levels: int) -> list[bool]:
    """Of each segment that may fork: whether its closing text was forced."""
    inner = [s for g in groups for s, level in zip(g.segments, g.levels_S, strict=True) if level < levels]
    return [not s.sampled_mask.all() for s in inner]
