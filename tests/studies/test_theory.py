"""Intervals, the variance of a thought's advantage, spike scores, the theorem's gap: by hand and by known figures."""

from __future__ import annotations

import numpy as np
import pytest
from groups import k_by_m

from phloem.analysis.spikes import rolling_deviations, spike_scores
from phloem.studies.combination import shrinkage
from phloem.studies.coupling import thought_mask
from phloem.studies.equivalence import gap
from phloem.studies.frequency_flaw import pushed_down, worked_example
from phloem.studies.intervals import difference, mean_of_seeds, student, wilson
from phloem.studies.made_groups import made_groups
from phloem.studies.study import Verdict, sided
from phloem.studies.thought_theory import binary_correlation, leading_order, simulated
from phloem.tree import Group, PrefixTree


def test_wilson_by_known_figures():
    none, half = wilson(0, 10), wilson(5, 10)
    assert (none.low, round(none.high, 4)) == (0.0, 0.2775)
    assert (round(half.low, 4), round(half.high, 4)) == (0.2366, 0.7634)
    assert wilson(0, 0).n == 0


def test_students_interval_by_hand():
    found = mean_of_seeds([1.0, 2.0, 3.0, float("nan")])
    assert (found.value, found.n) == (2.0, 3)
    assert found.high == pytest.approx(2 + 4.303 / np.sqrt(3))
    assert "no interval" in str(mean_of_seeds([1.0]))
    assert student(40) == pytest.approx(2.021, abs=2e-3)


def test_a_difference_takes_its_sign_from_the_second():
    apart = difference([0.0, 0.1, 0.2], [1.0, 1.1, 1.2])
    assert apart.value == pytest.approx(1.0)
    assert sided(apart, 1) is Verdict.CONFIRMED
    assert sided(apart, -1) is Verdict.NOT_CONFIRMED
    assert sided(difference([0.0, 1.0], [0.1, 1.1]), 1) is Verdict.UNDECIDED
    assert sided(difference([0.0], [1.0]), 1) is Verdict.UNDECIDED


def test_the_variance_of_a_thoughts_advantage_by_known_figures():
    v, noise = np.array([0.2, 0.4, 0.6, 0.9]), np.full(4, 0.04)
    np.testing.assert_allclose(leading_order(v, noise, 64), [0.00332, 0.00646, 0.00681, 0.00210], atol=5e-6)
    np.testing.assert_allclose(simulated(v, noise, 64, 200_000, 0), [0.00333, 0.00649, 0.00679, 0.00210], rtol=0.02)
    assert simulated(np.full(4, 0.5), noise, 64, 10_000, 0).mean() == pytest.approx(1.0, abs=0.02)


def test_correlations_by_known_figures():
    assert binary_correlation(4, 4, 40_000, 0) == pytest.approx(0.77, abs=0.02)
    assert binary_correlation(16, 1, 10_000, 0) == pytest.approx(0.57, abs=0.02)


def test_spike_scores_and_deviations_by_hand():
    np.testing.assert_allclose(spike_scores(np.array([1.0, 1.0, 4.0, np.nan])), [0.5, 0.5, 2.0, np.nan])
    assert np.isnan(spike_scores(np.zeros(3))).all()
    found = rolling_deviations(np.array([1.0, 3.0, 4.0, 4.0]), 2)
    np.testing.assert_allclose(found, [np.nan, np.nan, 2 / np.sqrt(2), 0.5 / np.sqrt(0.5)])
    with pytest.raises(ValueError, match="at least 2"):
        rolling_deviations(np.ones(3), 1)


def test_the_theorem_holds_at_one_update_and_breaks_where_it_should():
    groups = made_groups(10, 0)
    exact = [gap(g, "token", 0.0, 0.2, 0) for g in groups] + [gap(g, "token", 0.4, None, 0) for g in groups]
    assert max(exact) < 1e-12
    assert np.median([gap(g, "token", 0.4, 0.2, 0) for g in groups]) > 0.01
    assert np.median([gap(g, "sequence", 0.0, None, 0) for g in groups]) > 0.01


def test_the_worked_example_is_that_of_the_paper():
    found = worked_example()
    np.testing.assert_allclose(found["advantages"], [0.221, 0.221, 1.550, -1.107, -1.107, 0.221], atol=5e-4)
    assert found["advantage of JKL"] == pytest.approx(-0.2215, abs=5e-4)
    assert found["grpo"]["on JKL"] == pytest.approx(3 * found["lambda-grpo"]["on JKL"])


def test_a_prefix_of_the_best_that_is_pushed_down_is_found():
    group = Group.from_rollouts([0], [[1, 2], [1, 3], [1, 4], [5], [6], [7]], [1.0, 0.0, 0.0, 0.5, 0.5, 0.5])
    safe = Group.from_rollouts([0], [[1, 2], [3]], [1.0, 0.0])
    found = pushed_down([group, safe], "grpo")
    assert (found["groups"], found["flawed"], found["tokens"]) == (2, 1, 0.25)


def test_lambda_keeps_of_a_thought_what_the_spreads_say():
    thoughts_decide = np.array([[[1.0, 1.0], [0.0, 0.0]]])
    assert shrinkage(thoughts_decide)[0] == pytest.approx(np.sqrt(3 / 2))
    assert shrinkage(np.array([[[1.0, 0.0], [0.0, 1.0]]]))[0] == 0.0
    assert np.isnan(shrinkage(np.ones((1, 2, 2)))[0])


def test_the_mask_holds_the_thoughts():
    tree = PrefixTree.from_group(k_by_m(np.ones((2, 2)), thought=3, answer=2))
    assert thought_mask(tree).sum() == 6
    assert not thought_mask(PrefixTree.from_rollouts([0], [[1], [2]], [1.0, 0.0])).any()
