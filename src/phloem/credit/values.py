"""Branches of a rule, and the value of each: the mean reward of the scored leaves below."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from phloem.presets import Unit
from phloem.tree import Group, PrefixTree

__all__ = ["Branches", "branches", "segment_values"]


@dataclass(frozen=True, eq=False)
class Branches:
    """What a rule credits once, and which tree tokens each branch sampled.

    Attributes:
        segment_B: the segment of the branch; for a rollout its leaf.
        level_B: the segment's level; rollouts are all of level 1.
        parent_B: index of the segment above, -1 at the prompt.
        value_B: mean reward of the scored leaves below.
        length_B: tokens the policy sampled in the branch, |y_b|.
        entry_branch_E, entry_token_E: one entry per (branch, sampled token): the branch and the tree index.
    """

    segment_B: Int64[np.ndarray, " B"]
    level_B: Int64[np.ndarray, " B"]
    parent_B: Int64[np.ndarray, " B"]
    value_B: Float64[np.ndarray, " B"]
    length_B: Int64[np.ndarray, " B"]
    entry_branch_E: Int64[np.ndarray, " E"]
    entry_token_E: Int64[np.ndarray, " E"]


def segment_values(group: Group) -> Float64[np.ndarray, " S"]:
    """Mean reward of the leaves below each segment of a group whose rollouts are all scored."""
    total = np.zeros(len(group.segments))
    leaves = np.zeros(len(group.segments))
    total[list(group.leaves)] = group.rewards_R
    leaves[list(group.leaves)] = 1
    for s in range(len(group.segments) - 1, -1, -1):
        parent = group.segments[s].parent
        if parent is not None:
            total[parent] += total[s]
            leaves[parent] += leaves[s]
    return total / leaves


def branches(tree: PrefixTree, unit: Unit) -> Branches:
    """The branches of a unit on the tree of a group whose rollouts are all scored."""
    group = tree.group
    if unit == "rollout":
        segment_B = np.array(group.leaves, dtype=np.int64)
        spans = list(zip(tree.row_offset[:-1].tolist(), tree.row_offset[1:].tolist(), strict=True))
        level_B, value_B = np.ones_like(segment_B), group.rewards_R
    else:
        segment_B = np.arange(len(group.segments), dtype=np.int64)
        spans = list(tree.segment_spans)
        level_B, value_B = group.levels_S, segment_values(group)

    sizes_B = np.array([stop - start for start, stop in spans], dtype=np.int64)
    entry_branch_E = np.repeat(np.arange(len(spans)), sizes_B)
    if unit == "rollout":  # whose spans are all of `row_index`, in order
        entry_token_E, sampled_E = tree.row_index, tree.row_sampled
    else:
        none = np.zeros(0, dtype=np.int64)
        where_E = np.concatenate([none, *(np.arange(start, stop) for start, stop in spans)])
        entry_token_E, sampled_E = tree.row_index[where_E], tree.row_sampled[where_E]
    if not sampled_E.all():
        entry_branch_E, entry_token_E = entry_branch_E[sampled_E], entry_token_E[sampled_E]
    return Branches(
        segment_B=segment_B,
        level_B=level_B,
        parent_B=group.parents_S[segment_B],
        value_B=value_B,
        length_B=np.bincount(entry_branch_E, minlength=len(spans)).astype(np.int64),
        entry_branch_E=entry_branch_E,
        entry_token_E=entry_token_E,
    )
