import numpy as np
import pytest
from groups import k_by_m

from phloem.analysis.variance import thought_variance
from phloem.tree import Group, Segment


def test_within_and_between_by_hand():
    found = thought_variance(k_by_m(np.array([[1.0, 0.0], [1.0, 1.0]])))
    assert found.within == pytest.approx((0.5 + 0.0) / 2)
    assert found.between == pytest.approx(0.125)


def test_answers_that_their_thought_decides_have_no_variance_within():
    found = thought_variance(k_by_m(np.array([[1.0, 1.0], [0.0, 0.0]])))
    assert found.within == 0.0
    assert found.between == pytest.approx(0.5)


def test_plain_rollouts_truncated_thoughts_and_unscored_answers_have_no_answers_to_compare():
    assert np.isnan(thought_variance(Group.from_rollouts([1], [[2], [3]], [1.0, 0.0])).within)
    ids = np.array([2])
    segments = (Segment(ids, reward=1.0), Segment(ids + 1), Segment(ids, parent=1, reward=1.0), Segment(ids, parent=1))
    found = thought_variance(Group(np.array([1]), segments))
    assert np.isnan(found.within)
    assert np.isnan(found.between)
