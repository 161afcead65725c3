"""Advice on K and M from rewards whose variances are known."""

from __future__ import annotations

import numpy as np
import pytest
from groups import k_by_m

from phloem.analysis.choose import advantage_variance, advise


def _groups(within: float, between: float, n: int = 300, k: int = 4, m: int = 4, thought: int = 6, answer: int = 2):
    """Groups of normal rewards; answers have `answer` + 1.5 tokens on average."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(n, k, 1)) * np.sqrt(between)
    rewards = values + rng.normal(size=(n, k, m)) * np.sqrt(within)
    return [k_by_m(r, thought, answer) for r in rewards]


def test_the_variance_of_a_thought_advantage_against_monte_carlo():
    """Advantages over the std of K noisy values, given the true ones, for random thoughts."""
    rng = np.random.default_rng(0)
    for thoughts, answers, within in ((8, 1, 0.2), (8, 4, 1.0), (16, 2, 2.0), (16, 1, 3.0)):
        values = rng.normal(size=(600, 1, thoughts))
        noisy = values + rng.normal(size=(600, 300, thoughts)) * np.sqrt(within / answers)
        advantage = (noisy - noisy.mean(-1, keepdims=True)) / noisy.std(-1, keepdims=True)
        predicted = float(advantage_variance(np.array(within), np.array(1.0), answers))
        assert advantage.var(1).mean() == pytest.approx(predicted, abs=0.03)


def test_equal_thoughts_have_noise_for_advantages():
    assert advantage_variance(np.array([0.1, 0.0]), np.array([0.0, 0.0]), 4).tolist() == [1, 1]
    assert advantage_variance(np.array([0.0]), np.array([0.2]), 1).tolist() == [0]


def test_variances_are_found_without_the_answers_noise():
    advice = advise(_groups(within=0.4, between=0.1), 4, 4)
    assert advice is not None
    assert advice.within == pytest.approx(0.4, rel=0.1)
    assert advice.between_low < 0.1 < advice.between_high
    assert advice.between == pytest.approx(0.1, rel=0.25), "0.2 with the noise of four answers"
    assert (advice.thought_tokens, advice.answer_tokens) == (6, 3.5)
    assert advice.groups == 300


@pytest.mark.parametrize(
    ("within", "between", "thought", "least", "most"),
    [
        (0.001, 0.2, 6, 1, 1),  # a thought decides its answers: more answers add nothing
        (0.4, 0.1, 56, 6, 12),  # noisy answers and dear thoughts: sqrt(4 x 56 / 3.5) = 8
        (0.4, 0.1, 14, 3, 6),  # sqrt(4 x 14 / 3.5) = 4
    ],
)
def test_the_best_shape_is_that_of_two_stage_sampling(within, between, thought, least, most):
    advice = advise(_groups(within, between, thought=thought), 8, 4)
    assert advice is not None
    best = advice.best
    assert best is not None
    assert least <= best.answers <= most
    cost = 8 * (thought + 4 * 3.5)
    assert all(s.thoughts * (thought + s.answers * 3.5) <= 1.1 * cost for s in advice.shapes), "at equal cost"
    (own,) = [s for s in advice.shapes if (s.thoughts, s.answers) == (8, 4)]
    assert own.signal == pytest.approx(1)
    assert sum(s.chosen for s in advice.shapes) == pytest.approx(1)


def test_more_groups_are_surer():
    few, many = (advise(_groups(0.4, 0.1, n=n), 4, 4) for n in (20, 300))
    assert few is not None
    assert many is not None
    assert few.between_high - few.between_low > 2 * (many.between_high - many.between_low)


def test_too_little_and_nothing_to_find():
    assert advise(_groups(0.4, 0.1, n=4), 4, 4) is None
    assert advise(_groups(0.4, 0.1, m=1), 4, 1) is None
    same = [k_by_m(np.tile([[1.0, 0.0]], (3, 1))) for _ in range(9)]
    advice = advise(same, 3, 2)
    assert advice is not None
    assert advice.best is None
    assert advice.between < 0
