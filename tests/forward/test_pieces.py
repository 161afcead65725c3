"""Pieces: intervals below one path, no larger than the budget, with few tokens computed twice."""

import numpy as np
import pytest
from groups import Shape, groups
from hypothesis import given
from hypothesis import strategies as st

from phloem.forward.pieces import Piece, cut_into_pieces, recomputed, runs_above, stored
from phloem.tree import Group, PrefixTree, Segment


def ancestors(tree: PrefixTree, token: int) -> list[int]:
    found: list[int] = []
    while (token := int(tree.parent_T[token])) >= 0:
        found.append(token)
    return found[::-1]


@given(group=groups(Shape(levels=4, prompt=5, longest=6)), budget=st.integers(1, 30))
def test_pieces_cover_the_tree_below_one_path_each(group: Group, budget: int) -> None:
    tree = PrefixTree.from_group(group)
    pieces = cut_into_pieces(tree, budget)
    assert [p.start for p in pieces] == [0, *(p.stop for p in pieces[:-1])]
    assert pieces[-1].stop == len(tree)
    for piece in pieces:
        assert 0 < len(piece) <= budget
        above = ancestors(tree, piece.start)
        assert above == [t for a, b in runs_above(tree, piece.start) for t in range(a, b)]
        own = range(piece.start, piece.stop)
        assert all(set(ancestors(tree, t)) - set(above) <= set(own) for t in own)
        below = [t for t in range(piece.stop, len(tree)) if set(ancestors(tree, t)) & set(own)]
        assert below == (list(range(piece.stop, piece.end)) if piece.inner else [])


def two_levels(prompt: int, thought: int, answer: int) -> PrefixTree:
    fresh = iter(range(10**6))
    segments = [Segment(np.array([next(fresh) for _ in range(thought)])) for _ in range(4)]
    segments += [Segment(np.array([next(fresh) for _ in range(answer)]), parent=n // 4) for n in range(16)]
    return PrefixTree.from_group(Group(np.arange(prompt), tuple(segments)))


@pytest.mark.parametrize(
    ("budget", "sizes", "twice", "path"),
    [
        (5000, [4850], 0, 0),  # 50 + 4 x (1000 + 4 x 50): whole
        (2400, [50, 2400, 2400], 50, 50),  # the prompt, then thoughts with their answers, two by two
        (1200, [50, *[1200] * 4], 50, 50),
        (1100, [50, *[100, 1100] * 4], 50 + 4 * 100, 150),  # no more is computed twice than does not fit
        (600, [50, *[600, 600] * 4], 50 + 4 * 600, 650),  # the rest of a thought goes with its answers
    ],
)
def test_whole_subtrees_are_kept_together(budget: int, sizes: list[int], twice: int, path: int) -> None:
    tree = two_levels(50, 1000, 50)
    pieces = cut_into_pieces(tree, budget)
    assert [len(p) for p in pieces] == sizes
    assert recomputed(pieces) == twice
    assert stored(tree, pieces) == path


def test_a_chain_computes_its_last_piece_once() -> None:
    tree = PrefixTree.from_rollouts(np.arange(10), [np.arange(15)])
    pieces = cut_into_pieces(tree, 10)
    assert pieces == [Piece(0, 10, 25), Piece(10, 15, 25), Piece(15, 25, 25)]
    assert recomputed(pieces) == 15
