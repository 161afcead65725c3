import numpy as np
import pytest
from groups import Shape, groups, random_group
from hypothesis import given, settings

from phloem.tree import Group, PrefixTree, Segment

SHAPE = Shape(levels=5, forced=True)


def prefixes(tree: PrefixTree) -> list[tuple[int, ...]]:
    """Each tree token as the tuple of tokens from the prompt to it, by walking up the parents."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens_T.tolist(), tree.parent_T.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def test_a_small_tree_by_hand():
    tree = PrefixTree.from_rollouts([7, 8], [[1, 2, 3], [1, 2], [1, 2, 4, 5], [], [1, 2, 3], [9]])
    assert tree.tokens_T.tolist() == [7, 8, 1, 2, 3, 4, 5, 9]
    assert tree.parent_T.tolist() == [-1, 0, 1, 2, 3, 3, 5, 1]
    assert tree.end_T.tolist() == [8, 8, 7, 7, 5, 7, 7, 8]
    assert tree.depth_T.tolist() == [0, 1, 2, 3, 4, 4, 5, 2]
    assert tree.count_T.tolist() == [0, 0, 4, 4, 2, 1, 1, 1]
    assert tree.node_start.tolist() == [0, 2, 4, 5, 7, 8]
    assert tree.node_parent_N.tolist() == [-1, 0, 1, 1, 0]
    assert (tree.U, tree.Z) == (6, 13)


@settings(max_examples=200)
@given(groups(SHAPE))
def test_every_distinct_prefix_stands_once_in_preorder(group: Group):
    tree = PrefixTree.from_group(group)
    rows = [tuple(group.prompt) + tuple(group.completion(r)) for r in range(group.group_size)]
    expected = {row[:n] for row in rows for n in range(1, len(row) + 1)}
    found = prefixes(tree)
    assert set(found) == expected
    assert len(found) == len(expected)
    assert found == sorted(found)
    assert [found[i] for i in range(len(tree))] == [f for f in found if len(f) >= 1]
    assert tree.depth_T.tolist() == [len(f) - 1 for f in found]
    for r, row in enumerate(rows):
        assert tuple(tree.tokens_T[tree.path(r)]) == row


@settings(max_examples=100)
@given(groups(SHAPE))
def test_ancestors_are_an_interval(group: Group):
    tree = PrefixTree.from_group(group)
    found = prefixes(tree)
    for q, below in enumerate(found):
        for k, above in enumerate(found):
            assert (k <= q < tree.end_T[k]) == (below[: len(above)] == above)


@settings(max_examples=100)
@given(groups(SHAPE))
def test_nodes_are_maximal_runs_of_one_rollout_set(group: Group):
    tree = PrefixTree.from_group(group)
    through: list[set[int]] = [set() for _ in range(len(tree))]
    for r in range(group.group_size):
        for token in tree.path(r):
            through[token].add(r)
    size = tree.prompt_length
    for token in range(1, len(tree)):
        opens = token in tree.node_start
        joined = tree.parent_T[token] == token - 1 and through[token] == through[token - 1] and token != size
        assert opens == (not joined)


@settings(max_examples=100)
@given(groups(SHAPE))
def test_counts_are_of_rollouts_that_sampled_the_token(group: Group):
    tree = PrefixTree.from_group(group)
    found = prefixes(tree)
    counts = dict.fromkeys(found, 0)
    for r in range(group.group_size):
        row, sampled = tuple(group.completion(r)), group.completion_sampled(r)
        for n in np.flatnonzero(sampled):
            counts[tuple(group.prompt) + row[: n + 1]] += 1
    assert tree.count_T.tolist() == [counts[f] for f in found]
    assert tree.U == sum(c > 0 for c in counts.values())
    assert tree.Z == sum(counts.values())


@settings(max_examples=50)
@given(groups(SHAPE))
def test_segments_find_their_tokens(group: Group):
    tree = PrefixTree.from_group(group)
    for s, segment in enumerate(group.segments):
        np.testing.assert_array_equal(tree.tokens_T[tree.segment_index(s)], segment.tokens)


def test_the_order_of_rollouts_does_not_change_the_tree():
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 3, rng.integers(0, 6)) for _ in range(12)]
    one = PrefixTree.from_rollouts([1], rows)
    for _ in range(5):
        other = PrefixTree.from_rollouts([1], [rows[i] for i in rng.permutation(12)])
        for name in ("tokens_T", "parent_T", "end_T", "count_T", "node_start", "node_parent_N"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_known_structure_and_plain_rollouts_give_the_same_tree():
    group = random_group(np.random.default_rng(3), Shape(levels=4))
    rows = [group.completion(r) for r in range(group.group_size)]
    grown, merged = PrefixTree.from_group(group), PrefixTree.from_rollouts(group.prompt, rows)
    for name in ("tokens_T", "parent_T", "end_T", "count_T", "node_start", "row_index"):
        np.testing.assert_array_equal(getattr(grown, name), getattr(merged, name))


@pytest.mark.parametrize("completions", [[], [[]], [[], []], [[5]], [[5], [5]], [[0], [0, 0]], [[255], [255, 256]]])
def test_degenerate_groups(completions):
    tree = PrefixTree.from_rollouts([4, 4], completions)
    assert tree.U == len({tuple(c[:n]) for c in completions for n in range(1, len(c) + 1)})
    assert tree.Z == sum(len(c) for c in completions)
    assert tree.node_start[1] == 2
    assert [tree.tokens_T[tree.row(r)].tolist() for r in range(len(completions))] == completions


def test_large_ids_keep_their_order():
    tree = PrefixTree.from_rollouts([0], [[2**31], [256], [255], [65536]])
    assert tree.tokens_T.tolist() == [0, 255, 256, 65536, 2**31]


def test_a_token_forced_in_one_rollout_and_sampled_in_another_is_trained_once():
    forced = Segment(np.array([1, 2]), sampled=np.array([True, False]))
    tree = PrefixTree.from_group(Group(np.array([0]), (forced, Segment(np.array([1, 2])))))
    assert tree.sampled_T.tolist() == [False, True, True]
    assert tree.count_T.tolist() == [0, 2, 1]
    assert (tree.U, tree.Z) == (2, 3)
