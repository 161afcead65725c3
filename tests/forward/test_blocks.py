"""Blocks: any cut of the pre-order sees exactly the ancestors, and the chosen cut wastes little."""

import numpy as np
import pytest
from groups import Shape, groups, random_group
from hypothesis import given
from hypothesis import strategies as st

from phloem.forward import blocks
from phloem.tree import Group, PrefixTree, Segment


def ancestors(tree: PrefixTree, window: int | None) -> set[tuple[int, int]]:
    """Pairs (query, key), by walking up from every token."""
    pairs = set()
    for q in range(len(tree)):
        k = q
        while k >= 0 and (window is None or tree.depth_T[q] - tree.depth_T[k] < window):
            pairs.add((q, k))
            k = int(tree.parent_T[k])
    return pairs


def seen(tree: PrefixTree, cut: list[blocks.Block], window: int | None) -> set[tuple[int, int]]:
    pairs = set()
    for block in cut:
        mask = blocks.mask(tree, block, window)
        queries, keys = mask.shape
        assert blocks.is_chain(tree, block, window) == np.array_equal(mask, np.tri(queries, keys, keys - queries))
        pairs |= {(block.start + int(q), int(block.keys[k])) for q, k in np.argwhere(mask)}
    return pairs


@given(group=groups(Shape(levels=4, prompt=5)), window=st.sampled_from([None, 1, 2, 3, 7]), cost=st.integers(0, 60))
def test_blocks_see_the_ancestors_and_nothing_else(group: Group, window: int | None, cost: int) -> None:
    tree = PrefixTree.from_group(group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CALL_COST", cost)
        patch.setattr(blocks, "RUN", 2)
        cut = blocks.cut(tree, window)
    assert [block.start for block in cut[1:]] == [block.stop for block in cut[:-1]]
    assert (cut[0].start, cut[-1].stop) == (0, len(tree))
    assert seen(tree, cut, window) == ancestors(tree, window)
    assert seen(tree, blocks.whole(tree), window) == ancestors(tree, window)


def test_no_query_is_without_a_key() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        tree = PrefixTree.from_group(random_group(draw, Shape(levels=3)))
        for block in blocks.cut(tree, window=2):
            assert blocks.mask(tree, block, window=2).any(1).all()


def test_a_long_tree_computes_little_more_than_the_pairs_that_count() -> None:
    draw = np.random.default_rng(0)
    thoughts = [Segment(draw.integers(0, 1000, 250)) for _ in range(4)]
    answers = [Segment(draw.integers(0, 1000, 50), parent=k) for k in range(4) for _ in range(4)]
    tree = PrefixTree.from_group(Group(draw.integers(0, 1000, 50), (*thoughts, *answers)))
    cut = blocks.cut(tree)
    computed = sum((block.stop - block.start) * len(block.keys) for block in cut)
    counting = int((tree.depth_T + 1).sum())
    assert counting < computed < 1.3 * counting
    assert computed < 0.2 * len(tree) ** 2
    assert len(cut) < 40
