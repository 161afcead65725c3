"""pass@k, the vote, standard errors and intervals, against slow or hand-computed twins."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.evaluate import pass_at_k
from phloem.evaluate.predictions import Prediction, Sample
from phloem.evaluate.statistics import Figures, estimate
from phloem.evaluate.vote import majority, same_maths
from phloem.rewards import Status
from phloem.tree import Finish


@pytest.mark.parametrize("samples", range(1, 9))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(samples):
    for right in range(samples + 1):
        for k in range(1, samples + 1):
            subsets = list(combinations([True] * right + [False] * (samples - right), k))
            assert pass_at_k(samples, right, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15)


def test_pass_at_k_is_unbiased():
    """Its mean over binomial draws of the samples is 1 - (1 - p)^k; the plug-in estimate's is not."""
    n, p = 6, 0.3
    chance = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    for k in range(1, n + 1):
        mean = sum(w * pass_at_k(n, c, k) for c, w in enumerate(chance))
        assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)
    plug_in = sum(w * (1 - (1 - c / n) ** 4) for c, w in enumerate(chance))
    assert plug_in < 1 - (1 - p) ** 4 - 0.01


@pytest.mark.parametrize(("samples", "right", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_what_has_no_meaning(samples, right, k):
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(samples, right, k)


def test_pass_at_k_of_many_samples_does_not_overflow():
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)


# ------------------------------------------------------------------------------------------------------ vote


def vote(*answers: str | None, right: str = "4", same=lambda a, b: a == b):
    read = [None if a is None else (a, a) for a in answers]
    return majority(read, [1.0 if a == right else 0.0 for a in answers], same)


def test_the_vote_goes_to_the_answer_with_most_samples():
    assert vote("4", "5", "4").value == 1
    assert vote("5", "4", "5").value == 0
    assert vote(None, None, "4").value == 1  # no answer, no vote


def test_a_tie_earns_what_drawing_among_the_winners_earns_on_average():
    assert (vote("4", "5").value, vote("4", "5").tied) == (0.5, 2)
    assert vote("4", "5", "6").value == pytest.approx(1 / 3)
    assert vote("4", "4", "5", "5", "6").value == 0.5


def test_nobody_votes_and_nobody_is_scored():
    assert (vote(None, None).value, vote(None, None).tied) == (0, 0)
    assert math.isnan(majority([("4", "4")], [None], lambda a, b: True).value)
    assert majority([("5", "5"), ("5", "5"), ("4", "4")], [None, None, 1.0], lambda a, b: False).value == 1


def test_equal_answers_written_differently_vote_together():
    found = majority([("1/2", "\\frac12"), ("x", "7"), ("0.5", "0.5")], [1.0, 0.0, 1.0], same_maths)
    assert (found.value, found.tied) == (1, 1)


@given(st.lists(st.sampled_from(["1", "2", "3", None]), min_size=1, max_size=8), st.randoms())
def test_the_vote_does_not_depend_on_the_order_of_samples(answers, random):
    shuffled = random.sample(answers, len(answers))
    assert vote(*answers, right="2") == vote(*shuffled, right="2")


# ------------------------------------------------------------------------------------------------- estimates


def sample(reward: float | None, finish: Finish = Finish.STOP, status: Status | None = None) -> Sample:
    kind = status or (Status.BAD_GOLD if reward is None else Status.RIGHT if reward else Status.WRONG)
    answer = None if kind is Status.NO_ANSWER else f"{reward}"
    return Sample("", 10, finish, kind, reward, extracted=answer, parsed=answer)


def figures(*problems: list[Sample]) -> Figures:
    made = [Prediction("", "b", str(i), "", 1, "4", tuple(samples)) for i, samples in enumerate(problems)]
    return Figures(made, lambda a, b: a == b)


def cluster_robust_error(rewards: list[list[float]]) -> float:
    """Of the mean over all samples, by the sandwich formula over clusters with the factor B / (B - 1)."""
    mean = np.mean([r for own in rewards for r in own])
    total = sum(len(own) for own in rewards)
    squares = sum(sum(r - mean for r in own) ** 2 for own in rewards)
    return math.sqrt(squares / total**2 * len(rewards) / (len(rewards) - 1))


def test_the_standard_error_is_the_cluster_robust_one():
    rng = np.random.default_rng(0)
    rewards = (rng.random((12, 5)) < rng.random((12, 1))).astype(float).tolist()
    found = figures(*[[sample(r) for r in own] for own in rewards]).mean
    assert found.value == pytest.approx(np.mean(rewards))
    assert found.standard_error == pytest.approx(cluster_robust_error(rewards), abs=1e-15)


def test_asking_the_same_again_does_not_shrink_the_error():
    once = figures(*[[sample(float(i % 3 == 0))] for i in range(9)]).mean
    tenfold = figures(*[[sample(float(i % 3 == 0))] * 10 for i in range(9)]).mean
    assert tenfold == once


def test_the_interval_of_problems_that_all_agree_is_no_point():
    nothing = estimate([0.0] * 30)
    assert (nothing.value, nothing.standard_error, nothing.low) == (0, 0, 0)
    assert nothing.high == pytest.approx(0.1135, abs=1e-3)
    assert estimate([1.0] * 30).low == pytest.approx(1 - nothing.high)


def test_the_interval_covers_about_as_often_as_it_says():
    """2000 evaluations of 60 problems of mixed difficulty, 4 samples each."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        chance = rng.beta(0.5, 1.5, size=60)
        found = estimate(rng.binomial(4, chance).astype(float) / 4)
        covered += found.low <= 0.25 <= found.high
    assert 0.93 < covered / 2000 < 0.98


def test_what_was_not_scored_is_in_no_mean():
    found = figures([sample(1.0), sample(None)], [sample(None), sample(None)], [sample(0.0), sample(0.0)])
    assert (found.mean.value, found.mean.problems) == (0.5, 2)
    assert found.pass_at[2].problems == 1  # the third alone has two scored samples
    assert found.unscored_share == 0.5
    assert figures([sample(None)]).mean.problems == 0


def test_shares_and_counts():
    found = figures(
        [sample(0.0, Finish.LENGTH), sample(1.0)], [sample(0.0, Finish.LENGTH, Status.NO_ANSWER), sample(1.0)]
    )
    assert (found.clipped_share, found.no_answer_share) == (0.5, 0.25)
    assert found.verdicts == {"right": 2, "wrong": 1, "no-answer": 1, "bad-gold": 0, "timeout": 0, "fault": 0}
    assert {k: e.value for k, e in found.pass_at.items()} == {1: 0.5, 2: 1.0}
    assert found.vote is not None
    assert (found.vote[0].value, found.vote[1]) == (0.75, 1)
