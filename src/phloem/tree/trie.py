"""The prefix tree of a group: one entry per distinct (prefix, token).

Tokens lie in depth-first pre-order, so "is an ancestor of, or is" is an interval test: token k is above token q iff
`k <= q < end[k]`. The prompt's chain comes first; children are ordered by token id, so the tree does not depend on
the order of the rollouts. Built in vectorised numpy from the sorted rows of the group: what a row does not share
with the row before it is new.
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
        prompt_length = len(group.prompt)
        rows = [group.completion(r) for r in range(group.group_size)]
        flags = [group.completion_sampled(r) for r in range(group.group_size)]
        lengths_R = np.array([len(row) for row in rows], dtype=np.int64)
        merged = _merge(rows, lengths_R, first=prompt_length)

        chain = np.arange(prompt_length, dtype=np.int64)
        total = prompt_length + len(merged.tokens)
        row_sampled = np.concatenate([*flags, np.zeros(0, dtype=bool)])
        count_T = np.bincount(merged.row_index[row_sampled], minlength=total).astype(np.int64)
        cover_T = np.bincount(merged.row_index, minlength=total)
        parent_T = np.concatenate([chain - 1, merged.parent])

        # The rollouts through a token are among those through its parent: equal numbers mean equal sets.
        opens_T = (parent_T != np.arange(total) - 1) | (cover_T != cover_T[parent_T])
        opens_T[:prompt_length] = chain == 0
        opens_T[prompt_length : prompt_length + 1] = True
        first_N = np.flatnonzero(opens_T)
        node_T = np.cumsum(opens_T) - 1
        node_parent_N = np.where(first_N == 0, -1, node_T[parent_T[first_N]])
        return cls(
            group=group,
            tokens_T=np.concatenate([group.prompt, merged.tokens]),
            parent_T=parent_T,
            end_T=np.concatenate([np.full(prompt_length, total, dtype=np.int64), merged.end]),
            depth_T=np.concatenate([chain, prompt_length + merged.depth]),
            sampled_T=count_T > 0,
            count_T=count_T,
            node_start=np.append(first_N, total).astype(np.int64),
            node_parent_N=node_parent_N.astype(np.int64),
            row_index=merged.row_index,
            row_sampled=row_sampled,
            row_offset=np.concatenate([[0], np.cumsum(lengths_R)]).astype(np.int64),
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
    """Completion tokens of the tree; indices count from the whole tree's first token."""

    tokens: Int64[np.ndarray, " M"]
    parent: Int64[np.ndarray, " M"]
    end: Int64[np.ndarray, " M"]
    depth: Int64[np.ndarray, " M"]  # from the first completion token
    row_index: Int64[np.ndarray, " Z"]


def _merge(rows: list[np.ndarray], lengths_R: np.ndarray, first: int) -> _Merged:
    """Merges rows by equal prefixes; `first` is the number of prompt tokens that stand before them."""
    width = int(lengths_R.max(initial=0))
    if width == 0:
        none = np.zeros(0, dtype=np.int64)
        return _Merged(none, none, none, none, none)
    column_L = np.arange(width)

    # Ids plus one as big-endian bytes: byte order is id order, and the padding (0) sorts before every token.
    filled_RL = column_L < lengths_R[:, None]
    ids_RL = np.zeros((len(rows), width), dtype=">u4")
    ids_RL[filled_RL] = np.concatenate(rows) + 1
    order_R = np.argsort(ids_RL.view(f"S{4 * width}")[:, 0], kind="stable")
    ids_RL, filled_RL, lengths_R = ids_RL[order_R], filled_RL[order_R], lengths_R[order_R]

    differs_RL = ids_RL[1:] != ids_RL[:-1]
    shared_R = np.zeros(len(rows), dtype=np.int64)  # tokens in common with the row before
    shared_R[1:] = np.where(differs_RL.any(1), differs_RL.argmax(1), lengths_R[1:])
    new_R = lengths_R - shared_R
    start_R = first + np.cumsum(new_R) - new_R
    total = first + int(new_R.sum())

    own_RL = (column_L >= shared_R[:, None]) & filled_RL
    # A shared token is the one of the nearest row above that owns this column: indices grow downwards.
    own_index_RL = np.where(own_RL, start_R[:, None] + column_L - shared_R[:, None], 0)
    index_RL = np.maximum.accumulate(own_index_RL, axis=0)
    # A token's descendants end where the first later row leaves the path at or before the token's column.
    leaves_RL = np.where(column_L >= shared_R[1:, None], start_R[1:, None], total)
    end_RL = np.full((len(rows), width), total, dtype=np.int64)
    end_RL[:-1] = np.minimum.accumulate(leaves_RL[::-1], axis=0)[::-1]

    parent = np.arange(first, total, dtype=np.int64) - 1
    opening_R = np.flatnonzero(new_R > 0)
    above_R = shared_R[opening_R] - 1
    parent[start_R[opening_R] - first] = np.where(above_R < 0, first - 1, index_RL[opening_R, above_R])

    back_R = np.empty_like(order_R)
    back_R[order_R] = np.arange(len(rows))
    return _Merged(
        tokens=ids_RL[own_RL].astype(np.int64) - 1,
        parent=parent,
        end=end_RL[own_RL],
        depth=np.broadcast_to(column_L, own_RL.shape)[own_RL].astype(np.int64),
        row_index=index_RL[back_R][filled_RL[back_R]],
    )
