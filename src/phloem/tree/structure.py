"""What a tree looks like: path depth, shared share, token ratio.

Source: lambda-GRPO (arXiv 2509.21154), section on the structure of process sets. Duplicates count as separate
members of a process set, and as one path with a multiplicity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from phloem.means import known_mean
from phloem.tree.trie import PrefixTree

__all__ = ["Structure", "path_depths", "process_sets", "shared_share", "structure", "token_ratio"]


def path_depths(tree: PrefixTree) -> Int64[np.ndarray, " R"]:
    """Non-empty steps from the root to each rollout's leaf; the step shared by the whole group is not counted.

    A flat tree has depth 1. Identical completions share one last step, so they do not deepen a tree.
    """
    node_T = tree.node_T
    size = tree.group.group_size
    cover_N = np.zeros(len(tree.node_parent_N), dtype=np.int64)
    paths = [np.unique(node_T[tree.row(r)]) for r in range(size)]
    for nodes in paths:
        cover_N[nodes] += 1
    return np.array([int(np.count_nonzero(cover_N[nodes] < size)) for nodes in paths], dtype=np.int64)


def shared_share(tree: PrefixTree, with_common: bool) -> Float64[np.ndarray, " R"]:
    """Share of each completion's tokens that lie in a prefix shared by at least two completions.

    Args:
        tree: of the group.
        with_common: whether tokens shared by the whole group count (every completion may open with the same tag);
            if not, they are left out of numerator and denominator.

    Returns:
        shape (R,), NaN for a completion without a counted token.
    """
    size = tree.group.group_size
    cover_T = np.bincount(tree.row_index, minlength=len(tree))
    shares = np.full(size, np.nan)
    for r in range(size):
        cover = cover_T[tree.row(r)]
        cover = cover if with_common else cover[cover < size]
        if len(cover):
            shares[r] = np.mean(cover >= 2)
    return shares


def process_sets(tree: PrefixTree) -> list[tuple[frozenset[int], int, int]]:
    """The process sets that hold tokens, as (rollouts, first, one past last completion token), in tree order."""
    members: list[set[int]] = [set() for _ in tree.node_parent_N]
    for r in range(tree.group.group_size):
        for node in np.unique(tree.node_T[tree.row(r)]):
            members[int(node)].add(r)
    first_N = tree.depth_T[tree.node_start[:-1]] - tree.prompt_length
    sizes_N = np.diff(tree.node_start)
    return [(frozenset(members[n]), int(first_N[n]), int(first_N[n] + sizes_N[n])) for n in range(1, len(members))]


def token_ratio(tree: PrefixTree) -> float:
    """Row tokens over distinct tokens, prompt included on both sides: r = sum_i (P + |y_i|) / T."""
    rows = tree.group.group_size * tree.prompt_length + len(tree.row_index)
    return rows / len(tree)


@dataclass(frozen=True)
class Structure:
    """Figures of one tree; shares are means over rollouts, NaN where no token counts."""

    depth: float
    flat: bool
    shared: float
    shared_without_common: float
    ratio: float


def structure(tree: PrefixTree) -> Structure:
    """The figures of one tree. A tree is flat if no path has more than one step."""
    depths = path_depths(tree)
    return Structure(
        depth=float(depths.mean()) if len(depths) else 0.0,
        flat=bool((depths <= 1).all()),
        shared=known_mean(shared_share(tree, with_common=True)),
        shared_without_common=known_mean(shared_share(tree, with_common=False)),
        ratio=token_ratio(tree),
    )
