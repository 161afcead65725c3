"""A tree cut into pieces of bounded size, for the depth-first engine (`dfs.py`).

A piece is an interval of the pre-order: either whole subtrees of neighbouring siblings, or a stretch of one node whose
subtree is too large. All its tokens lie below the same path, so their keys are that path's and the piece's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from phloem.tree.trie import PrefixTree

__all__ = ["Piece", "cut_into_pieces", "recomputed", "runs_above", "stored"]


@dataclass(frozen=True)
class Piece:
    """Tokens start:stop of a tree; `end` is one past the last descendant of its first token or of its siblings."""

    start: int
    stop: int
    end: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def inner(self) -> bool:
        """Whether other pieces lie below it."""
        return self.stop < self.end


def cut_into_pieces(tree: PrefixTree, budget: int) -> list[Piece]:
    """Pieces of at most `budget` tokens, in pre-order; an inner one ends where what lies below it fits in one piece."""
    pieces: list[Piece] = []
    start = 0
    while start < len(tree):
        end = int(tree.end_T[start])
        if end - start > budget:
            stop = min(int(tree.node_start[tree.node_T[start] + 1]), start + budget, end - budget)
        else:
            while end < len(tree) and tree.parent_T[end] == tree.parent_T[start] and tree.end_T[end] - start <= budget:
                end = int(tree.end_T[end])
            stop = end
        pieces.append(Piece(start, stop, end))
        start = stop
    return pieces


def recomputed(pieces: list[Piece]) -> int:
    """Tokens whose forward is taken twice: those of inner pieces."""
    return sum(len(piece) for piece in pieces if piece.inner)


def stored(tree: PrefixTree, pieces: list[Piece]) -> int:
    """Tokens of the longest path whose keys and values are kept at a time."""
    return max((int(tree.depth_T[piece.start]) + len(piece) for piece in pieces if piece.inner), default=0)


def runs_above(tree: PrefixTree, token: int) -> tuple[tuple[int, int], ...]:
    """A token's ancestors as runs of neighbours, from the first prompt token down."""
    runs: list[tuple[int, int]] = []
    stop, node = token, int(tree.node_T[token])
    while node >= 0:
        if (start := int(tree.node_start[node])) < stop:
            runs.append((start, stop))
        node = int(tree.node_parent_N[node])
        stop = int(tree.node_start[node + 1])
    return tuple(reversed(runs))
