import numpy as np
import pytest

from phloem.tree import Group, Segment


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def two_thoughts() -> Group:
    return Group(
        ids(9),
        (
            Segment(ids(1, 2)),
            Segment(ids(3)),
            Segment(ids(4), parent=0, reward=1.0),
            Segment(ids(5, 6), parent=0, reward=0.0),
            Segment(ids(7), parent=1, reward=None),
        ),
    )


def test_leaves_levels_and_paths():
    group = two_thoughts()
    assert group.leaves == (2, 3, 4)
    assert group.group_size == 3
    assert group.levels_S.tolist() == [1, 1, 2, 2, 2]
    assert group.path(3) == (0, 3)
    assert group.completion(1).tolist() == [1, 2, 5, 6]
    np.testing.assert_array_equal(group.rewards_R, [1.0, 0.0, np.nan])


def test_a_truncated_thought_is_a_leaf_of_level_one():
    group = Group(ids(9), (Segment(ids(1), reward=0.0), Segment(ids(2)), Segment(ids(3), parent=1, reward=1.0)))
    assert group.leaves == (0, 2)
    assert group.levels_S[list(group.leaves)].tolist() == [1, 2]


def test_scored_drops_unscored_rollouts_and_barren_segments():
    kept = two_thoughts().scored()
    assert [s.tokens.tolist() for s in kept.segments] == [[1, 2], [4], [5, 6]]
    assert [s.parent for s in kept.segments] == [None, 0, 0]
    assert kept.scored() is kept


def test_a_group_without_a_scored_rollout_is_empty():
    assert Group.from_rollouts([1], [[2], [3]]).scored().segments == ()


def test_with_rewards_gives_one_to_each_rollout():
    group = two_thoughts().with_rewards([0.25, None, 0.75])
    np.testing.assert_array_equal(group.rewards_R, [0.25, np.nan, 0.75])
    with pytest.raises(ValueError, match="3 rollouts and 2 rewards"):
        group.with_rewards([1.0, 2.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Group(ids(), (Segment(ids(1)),)), "at least one token"),
        (lambda: Group(ids(1), (Segment(ids(1), parent=0),)), "comes before its children"),
        (lambda: Group(ids(1), (Segment(ids(1), reward=1.0), Segment(ids(2), parent=0))), "only leaves"),
        (lambda: Segment(ids(1), reward=float("nan")), "finite"),
        (lambda: Segment(ids(1), reward=1e39), "finite in float32"),
        (lambda: Segment(ids(1, 2), sampled=np.array([1, 0])), "sampled holds int64; it takes true or false"),
        (lambda: Segment(ids(1, 2), logprobs=np.array(["a", "b"])), "logprobs holds .*; it takes floats"),
        (lambda: Group(np.array([0.5]), ()), "prompt must be a flat array of integers"),
        (lambda: Group(ids(-3), ()), "token ids"),
        (lambda: Group.from_rollouts([1], [np.array([2.5])]), "integers, not float64"),
        (lambda: Group.from_rollouts(np.array([1.5]), [[2]]), "integers, not float64"),
        (lambda: Segment(ids(-1)), "token ids"),
        (lambda: Segment(ids(1, 2), sampled=np.array([True])), "sampled has shape"),
        (lambda: Segment(np.array([0.5])), "integers"),
        (lambda: Group.from_rollouts([1], [[2]], [1.0, 0.0]), "1 completions and 2 rewards"),
    ],
)
def test_bad_input_names_the_fault(make, message):
    with pytest.raises(ValueError, match=message):
        make()
