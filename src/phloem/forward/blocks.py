"""Cutting a tree's pre-order into blocks of queries, and which keys each block needs.

Whatever lies above a token of a block and before the block also lies above the block's first token: from
`k < a <= q < end[k]` follows `k <= a < end[k]`. So the block a:b needs the path above a and itself, whatever the
branching inside it, and any cut is exact. A good cut computes few pairs that do not count, in few calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from phloem.tree.trie import PrefixTree

__all__ = ["Block", "cut", "is_chain", "mask", "whole"]

# What one more call costs, in query-key pairs (some 300 microseconds forward and backward, against about 15 pairs of a
# 9-head layer a microsecond, on two cores).
CALL_COST = 5000
# Nodes longer than this may be cut inside, so that a long chain does not compute the pairs above its diagonal.
RUN = 128


@dataclass(frozen=True)
class Block:
    """Queries start:stop of a tree, and the runs of tokens above `start` that they need, in order."""

    start: int
    stop: int
    above: tuple[tuple[int, int], ...] = ()

    @property
    def queries(self) -> int:
        """Their number."""
        return self.stop - self.start

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """The keys as runs of neighbours: those above, then the block itself."""
        return (*self.above, (self.start, self.stop))

    @property
    def keys(self) -> Int64[np.ndarray, " K"]:
        """Tree indices of the keys, in the order of `runs`."""
        return np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in self.runs])


def whole(tree: PrefixTree) -> list[Block]:
    """The tree as one block."""
    return [Block(0, len(tree))]


def cut(tree: PrefixTree, window: int | None = None) -> list[Block]:
    """The blocks of least cost: pairs computed plus `CALL_COST` for each block.

    Cuts lie at the first tokens of nodes, and inside long nodes every `RUN` tokens; the best choice among them is
    found by dynamic programming, first to last.
    """
    places = _places(tree)
    depth = tree.depth_T[places[:-1]]
    best = np.zeros(len(places))
    came_from = np.zeros(len(places), dtype=np.int64)
    above: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    for j in range(1, len(places)):
        sizes = places[j] - places[:j]
        above.append(_length_above(depth[:j], window))
        costs = best[:j] + sizes * (above[j] + sizes) + CALL_COST
        came_from[j] = np.argmin(costs)
        best[j] = costs[came_from[j]]
    blocks: list[Block] = []
    j = len(places) - 1
    while j > 0:
        i = int(came_from[j])
        start, stop = int(places[i]), int(places[j])
        blocks.append(Block(start, stop, _above(tree, start, int(above[j][i]))))
        j = i
    return blocks[::-1]


def is_chain(tree: PrefixTree, block: Block, window: int | None = None) -> bool:
    """Whether each query of a block sees all keys up to itself: no fork inside, no window that ends inside."""
    if not (tree.end_T[block.start : block.stop] >= block.stop).all():
        return False
    return window is None or len(block.keys) <= window


def mask(tree: PrefixTree, block: Block, window: int | None = None) -> Bool[np.ndarray, " Q K"]:
    """Which of its keys each query of a block sees."""
    queries, keys = np.arange(block.start, block.stop)[:, None], block.keys[None]
    seen = (keys <= queries) & (queries < tree.end_T[keys])
    if window is not None:
        seen &= tree.depth_T[queries] - tree.depth_T[keys] < window
    return seen


def _places(tree: PrefixTree) -> Int64[np.ndarray, " m"]:
    """Where the tree may be cut, 0 and its end included."""
    inside = [np.arange(a, b, RUN) for a, b in zip(tree.node_start[:-1], tree.node_start[1:], strict=True)]
    return np.append(np.unique(np.concatenate(inside)), len(tree))


def _length_above(depth: Int64[np.ndarray, " j"], window: int | None) -> Int64[np.ndarray, " j"]:
    """How many tokens above its first one a block needs, for each place it may start at; `depth` is the places'.

    With a window that is decided by the block's shallowest token, which may come after a fork higher up.
    """
    if window is None:
        return depth
    shallowest = np.minimum.accumulate(depth[::-1])[::-1]
    return depth - np.maximum(shallowest - window + 1, 0)


def _above(tree: PrefixTree, token: int, length: int) -> tuple[tuple[int, int], ...]:
    """The last `length` tokens above a token, as runs of neighbours."""
    runs: list[tuple[int, int]] = []
    stop, node = token, int(tree.node_T[token])
    while length > 0:
        start = max(int(tree.node_start[node]), stop - length)
        if stop > start:
            runs.append((start, stop))
            length -= stop - start
        node = int(tree.node_parent_N[node])
        stop = int(tree.node_start[node + 1])
    return tuple(reversed(runs))
