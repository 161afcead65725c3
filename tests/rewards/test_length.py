"""Length budgets and the soft overlong punishment."""

import pytest

from phloem.rewards import RewardError
from phloem.rewards.length import Overlong, WithinBudget, overlong_penalty


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0), (16384, 0), (17408, -0.25), (18432, -0.5), (20480, -1), (30000, -1)]
)
def test_overlong_penalty_with_the_papers_numbers(length, penalty):
    assert overlong_penalty(length, limit=20480, buffer=4096) == penalty


def test_overlong_as_a_reward():
    reward = Overlong(limit=10, buffer=5, unit="words")
    assert reward("one two").reward == 0.0
    assert reward("one two").status == "right"
    assert reward(" ".join(["w"] * 8)).reward == pytest.approx(-0.6)
    assert Overlong(limit=10, buffer=5, unit=lambda text: 100)("x").reward == -1


def test_budget():
    assert WithinBudget(3)("abc").reward == 1
    assert WithinBudget(3)("abcd").reward == 0
    assert WithinBudget(2, unit="words")("ab cd").reward == 1


@pytest.mark.parametrize(
    "make", [lambda: WithinBudget(0), lambda: WithinBudget(3, unit="tokens"), lambda: Overlong(limit=4, buffer=5)]
)
def test_impossible_budgets_are_refused(make):
    with pytest.raises(RewardError, match=r"limit|unit"):
        make()
