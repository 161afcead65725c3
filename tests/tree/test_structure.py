import numpy as np
import pytest

from phloem.tree import PrefixTree
from phloem.tree.draw import draw
from phloem.tree.structure import path_depths, process_sets, shared_share, structure, token_ratio

LETTERS = "_JKLMNOPQR"


def tree_of(*words: str) -> PrefixTree:
    return PrefixTree.from_rollouts([0], [[LETTERS.index(c) for c in word] for word in words])


WORKED = ("JKLM", "JKLN", "JKLO", "PQ", "PR", "N")


def test_path_depth_of_the_worked_example():
    assert path_depths(tree_of(*WORKED)).tolist() == [2, 2, 2, 2, 2, 1]


def test_a_flat_tree_has_depth_one_and_the_common_step_is_not_counted():
    assert path_depths(tree_of("J", "K")).tolist() == [1, 1]
    assert path_depths(tree_of("LJ", "LK")).tolist() == [1, 1]
    assert structure(tree_of("LJ", "LK")).flat
    assert not structure(tree_of("LJ", "LK", "M")).flat


def test_duplicates_are_one_path():
    assert path_depths(tree_of("JK", "JK", "M")).tolist() == [1, 1, 1]
    assert path_depths(tree_of("JK", "JK")).tolist() == [0, 0]


def test_shared_share_with_and_without_the_common_step():
    tree = tree_of("LJM", "LJN", "LK")
    np.testing.assert_allclose(shared_share(tree, with_common=True), [2 / 3, 2 / 3, 1 / 2])
    np.testing.assert_allclose(shared_share(tree, with_common=False), [1 / 2, 1 / 2, 0])
    assert np.isnan(shared_share(tree_of("L", "L"), with_common=False)).all()


def test_process_sets_of_the_worked_example():
    found = process_sets(tree_of(*WORKED))
    assert (frozenset({0, 1, 2}), 0, 3) in found
    assert (frozenset({3, 4}), 0, 1) in found
    assert (frozenset({5}), 0, 1) in found
    assert len(found) == 8


@pytest.mark.parametrize(
    ("prompt", "thought", "answer", "k", "m", "expected"), [(200, 1000, 200, 4, 4, 3.03), (200, 0, 1200, 16, 1, 1.15)]
)
def test_token_ratio(prompt, thought, answer, k, m, expected):
    rows, fresh = [], iter(range(1, 10**6))
    for _ in range(k):
        head = [next(fresh) for _ in range(thought)]
        rows += [head + [next(fresh) for _ in range(answer)] for _ in range(m)]
    assert round(token_ratio(PrefixTree.from_rollouts([0] * prompt, rows)), 2) == expected


def test_drawing():
    picture = draw(tree_of("JKLM", "JKN", "P"), lambda ids: " ".join(LETTERS[i] for i in ids))
    assert picture.splitlines() == [
        "_",
        "├─ J K     x2",
        "│  ├─ L M  x1",
        "│  └─ N    x1",
        "└─ P       x1",
    ]


def test_drawing_shortens_long_nodes_and_checks_its_notes():
    tree = PrefixTree.from_rollouts([0], [[5] * 300, [6]])
    assert all(len(line) <= 60 for line in draw(tree, lambda ids: "x" * len(ids), width=60).splitlines())
    with pytest.raises(ValueError, match="3 nodes and 1 notes"):
        draw(tree, str, notes=["a"])
