"""The prefix tree of a group: one entry per distinct (prefix, token).

Tokens lie in depth-first pre-order, so "is an ancestor of, or is" is an interval test: token k is above token q iff
`k <= q < end[k]`. The prompt's chain comes first; children are ordered by token id, so the tree does not depend on
the order of the rollouts. Built from the sorted rows of the group: what a row does not share with the row before it is
new. Python steps from row to row; all that is done per token is vectorised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int64

from phloem.tree.rollout import Group

__all__ = ["PrefixTree"]


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """Flat arrays over the T distinct tokens of a group, prompt included, in depth-first pre-order.

    Attributes:
        group: what the tree was built from.
        tokens_T: token ids.
        parent_T: index of the token before; -1 for the first prompt token. A token is predicted at its parent.
        end_T: one past the last descendant.
        depth_T: position in the row, from 0; also the position id.
        sampled_T: at least one rollout sampled the token (False: prompt, forced text).
        count_T: number of rollouts that sampled the token (the papers' |lambda|); 0 for prompt and forced text.
        node_start: shape (N + 1,); node n holds tokens node_start[n]:node_start[n + 1]. A node is a maximal run
            covered by the same set of rollouts; node 0 is the prompt.
        node_parent_N: index of the node above; -1 for node 0.
        row_index: tree index of every completion token of every rollout, rollouts one after the other.
        row_sampled: whether that rollout sampled the token.
        row_offset: shape (R + 1,); rollout r holds row_index[row_offset[r]:row_offset[r + 1]].
    """

    group: Group
    tokens_T: Int64[np.ndarray, " T"]
    parent_T: Int64[np.ndarray, " T"]
    end_T: Int64[np.ndarray, " T"]
    depth_T: Int64[np.ndarray, " T"]
    sampled_T: Bool[np.ndarray, " T"]
    count_T: Int64[np.ndarray, " T"]
    node_start: Int64[np.ndarray, " N1"]
    node_parent_N: Int64[np.ndarray, " N"]
    row_index: Int64[np.ndarray, " Z"]
    row_sampled: Bool[np.ndarray, " Z"]
    row_offset: Int64[np.ndarray, " R1"]

    @classmethod
    def from_rollouts(
        cls,
        prompt: Sequence[int] | np.ndarray,
        completions: Sequence[Sequence[int] | np.ndarray],
        rewards: Sequence[float | None] | None = None,
    ) -> PrefixTree:
        """The tree of plain rollouts, merged by equal prefixes."""
        return cls.from_group(Group.from_rollouts(prompt, completions, rewards))

    @classmethod
    def from_group(cls, group: Group) -> PrefixTree:
        """The tree of a group's rollouts; equal prefixes are merged whether or not they were sampled as one."""
        first = len(group.prompt)
        rows = [group.completion(r) for r in range(group.group_size)]
        lengths_R = np.array([len(row) for row in rows], dtype=np.int64)
        merged = _merge(rows, first)
        total = merged.total

        new_O = merged.own_stop_O - merged.own_start_O
        depth_T = np.arange(total)
        depth_T[first:] += np.repeat(first + merged.own_start_O - merged.own_first_O, new_O)
        parent_T = np.arange(-1, total - 1)
        parent_T[merged.own_first_O] = merged.own_parent_O

        node_start = np.concatenate([[0], merged.node_first_M, [total]])
        node_end_N = np.append(total, merged.node_end_M)
        node_parent_N = np.searchsorted(node_start, parent_T[node_start[:-1]], side="right") - 1

        length_Q = merged.run_length_Q
        shift_Q = merged.run_first_Q - np.cumsum(length_Q) + length_Q
        row_index = np.repeat(shift_Q, length_Q) + np.arange(int(length_Q.sum()), dtype=np.int64)
        if all(segment.sampled is None for segment in group.segments):
            row_sampled = np.ones(len(row_index), dtype=bool)
        else:
            row_sampled = np.concatenate([group.completion_sampled(r) for r in range(group.group_size)])
        count_T = np.bincount(row_index[row_sampled], minlength=total)
        return cls(
            group=group,
            tokens_T=np.concatenate([group.prompt, *merged.own]),
            parent_T=parent_T,
            end_T=np.repeat(node_end_N, np.diff(node_start)),
            depth_T=depth_T,
            sampled_T=count_T > 0,
            count_T=count_T,
            node_start=node_start,
            node_parent_N=node_parent_N,
            row_index=row_index,
            row_sampled=row_sampled,
            row_offset=np.concatenate([[0], np.cumsum(lengths_R)]),
        )

    def __len__(self) -> int:
        """Number of distinct tokens, prompt included."""
        return len(self.tokens_T)

    @property
    def prompt_length(self) -> int:
        return len(self.group.prompt)

    @property
    def U(self) -> int:
        """Distinct sampled tokens."""
        return int(np.count_nonzero(self.sampled_T))

    @property
    def Z(self) -> int:
        """Sampled tokens, counted once per rollout."""
        return int(np.count_nonzero(self.row_sampled))

    @cached_property
    def node_T(self) -> Int64[np.ndarray, " T"]:
        """The node of each token."""
        sizes_N = np.diff(self.node_start)
        return np.repeat(np.arange(len(sizes_N), dtype=np.int64), sizes_N)

    def row(self, rollout: int) -> Int64[np.ndarray, " L"]:
        """Tree indices of one rollout's completion tokens, in order."""
        return self.row_index[self.row_offset[rollout] : self.row_offset[rollout + 1]]

    def path(self, rollout: int) -> Int64[np.ndarray, " L"]:
        """Tree indices of one rollout's whole row, prompt included, in order."""
        return np.concatenate([np.arange(self.prompt_length, dtype=np.int64), self.row(rollout)])

    @cached_property
    def segment_spans(self) -> tuple[tuple[int, int], ...]:
        """For each segment, where its tokens lie in `row_index` (those of the first rollout through it)."""
        spans: list[tuple[int, int] | None] = [None] * len(self.group.segments)
        for r, leaf in enumerate(self.group.leaves):
            start = int(self.row_offset[r])
            for s in self.group.path(leaf):
                stop = start + len(self.group.segments[s])
                spans[s] = spans[s] or (start, stop)
                start = stop
        return tuple(span for span in spans if span is not None)

    def segment_index(self, segment: int) -> Int64[np.ndarray, " n"]:
        """Tree indices of one segment's tokens, in order."""
        start, stop = self.segment_spans[segment]
        return self.row_index[start:stop]


@dataclass(frozen=True)
class _Merged:
    """Rows merged by equal prefixes; tree indices count from the prompt's first token, columns from the completions'.

    Attributes:
        total: tokens of the tree.
        own: of each row that is not all shared with the row before it in sorted order, the tokens that are not.
        own_start_O, own_stop_O: their columns; own_first_O: tree index of the first; own_parent_O: of the one before.
        node_first_M, node_end_M: first token of each node but the prompt, ascending, and one past its descendants.
        run_first_Q, run_length_Q: each row as runs of neighbours in the tree, rows in the order given.
    """

    total: int
    own: list[np.ndarray]
    own_start_O: Int64[np.ndarray, " O"]
    own_stop_O: Int64[np.ndarray, " O"]
    own_first_O: Int64[np.ndarray, " O"]
    own_parent_O: Int64[np.ndarray, " O"]
    node_first_M: Int64[np.ndarray, " M"]
    node_end_M: Int64[np.ndarray, " M"]
    run_first_Q: Int64[np.ndarray, " Q"]
    run_length_Q: Int64[np.ndarray, " Q"]


def _merge(rows: list[np.ndarray], first: int) -> _Merged:
    """Merges rows by equal prefixes; `first` is the number of prompt tokens that stand before them.

    Rows are taken in sorted order. The path of the row before is kept as runs (start column, stop column, tree index
    of the first); where a row leaves it, the rest of it is closed: no later row comes back there. What is closed in
    one piece is a node, since all tokens of it have the same rows through them.
    """
    # Ids as big-endian bytes: byte order is id order, and a prefix sorts before what it is a prefix of.
    keys = [row.astype(">u4").tobytes() for row in rows]
    path: list[tuple[int, int, int]] = []
    runs: list[list[tuple[int, int, int]]] = [[] for _ in rows]
    own: list[tuple[int, int, int, int]] = []
    parts: list[np.ndarray] = []
    nodes: list[tuple[int, int]] = []
    before, total = np.zeros(0, dtype=np.int64), first
    for r in sorted(range(len(rows)), key=keys.__getitem__):
        row = rows[r]
        shared = _shared(before, row)
        _close(path, shared, total, nodes)
        if shared < len(row):
            parent = path[-1][2] + path[-1][1] - path[-1][0] - 1 if path else first - 1
            own.append((shared, len(row), total, parent))
            parts.append(row[shared:])
            path.append((shared, len(row), total))
            total += len(row) - shared
        runs[r] = path.copy()
        before = row
    _close(path, 0, total, nodes)
    own_start, own_stop, own_first, own_parent = _columns(own, 4)
    node_first, node_end = _columns(sorted(nodes), 2)
    start, stop, run_first = _columns([run for row in runs for run in row], 3)
    return _Merged(
        total, parts, own_start, own_stop, own_first, own_parent, node_first, node_end, run_first, stop - start
    )


def _shared(before: np.ndarray, row: np.ndarray) -> int:
    """How many tokens two rows have in common at their start."""
    most = min(len(before), len(row))
    if most == 0 or before[0] != row[0]:
        return 0
    differs = before[:most] != row[:most]
    found = int(differs.argmax())
    return found if differs[found] else most


def _close(path: list[tuple[int, int, int]], column: int, end: int, nodes: list[tuple[int, int]]) -> None:
    """Cuts a path off at a column; what is cut off becomes nodes (first token, `end`)."""
    while path and path[-1][1] > column:
        start, _, index = path.pop()
        kept = max(column - start, 0)
        nodes.append((index + kept, end))
        if kept:
            path.append((start, column, index))


def _columns(rows: list[tuple[int, ...]], number: int) -> np.ndarray:
    """Tuples of that many numbers as one array for each place."""
    return np.array(rows, dtype=np.int64).reshape(-1, number).T
