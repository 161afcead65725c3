"""Packs: indices shifted, forks predicted from one position, trees distributed over budgets."""

import numpy as np
import pytest
from groups import Shape, random_group

from phloem.forward import pack, split_into_packs
from phloem.tree import PrefixTree


def random_trees(number: int, seed: int = 0) -> list[PrefixTree]:
    draw = np.random.default_rng(seed)
    return [PrefixTree.from_group(random_group(draw, Shape(levels=3, forced=True))) for _ in range(number)]


def test_a_fork_is_one_predicting_position() -> None:
    tree = PrefixTree.from_rollouts([7, 8], [[1, 2], [1, 3], [4]])
    packed = pack([tree, tree])
    assert packed.tokens_T.tolist() == [7, 8, 1, 2, 3, 4] * 2
    assert packed.position_T.tolist() == [0, 1, 2, 3, 3, 2] * 2
    assert packed.parent_T.tolist() == [-1, 0, 1, 2, 2, 1, -1, 6, 7, 8, 8, 7]
    assert packed.end_T.tolist() == [6, 6, 5, 4, 5, 6, 12, 12, 11, 10, 11, 12]
    assert packed.trained_E.tolist() == [2, 3, 4, 5, 8, 9, 10, 11]
    assert packed.predict_P.tolist() == [1, 2, 7, 8]
    assert packed.slot_E.tolist() == [0, 1, 1, 0, 2, 3, 3, 2]
    assert packed.target_E.tolist() == [1, 2, 3, 4] * 2


def test_every_trained_token_is_predicted_at_its_parent() -> None:
    trees = random_trees(5)
    packed = pack(trees)
    assert len(packed) == sum(len(tree) for tree in trees)
    assert len(packed.trained_E) == sum(tree.U for tree in trees)
    assert (packed.predict_P[packed.slot_E] == packed.parent_T[packed.trained_E]).all()
    assert len(set(packed.predict_P.tolist())) == len(packed.predict_P)


def test_no_tree_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one tree"):
        pack([])


@pytest.mark.parametrize("budget", [1, 20, 64, 10**6])
def test_every_tree_is_in_one_pack_within_budget(budget: int) -> None:
    trees = random_trees(20, seed=3)
    packs = split_into_packs(trees, budget)
    assert sorted(i for members in packs for i in members) == list(range(20))
    for members in packs:
        assert members == sorted(members)
        assert sum(len(trees[i]) for i in members) <= budget or len(members) == 1


def test_first_fit_fills_earlier_packs() -> None:
    trees = [PrefixTree.from_rollouts([0], [[1] * (n - 1)]) for n in (6, 7, 3, 2, 9, 20)]
    assert split_into_packs(trees, 10) == [[0, 2], [1, 3], [4], [5]]
    with pytest.raises(ValueError, match="max_tokens is 0"):
        split_into_packs(trees, 0)
