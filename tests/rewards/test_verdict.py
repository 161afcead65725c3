"""Verdicts: what a reward may be, and the counts of a batch."""

import math

import numpy as np
import pytest

from phloem.rewards import RewardError, Status, Verdict, tally, to_verdict


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -math.inf, "1", [1.0], {"reward": 1}, 1j, np.nan, 1e39, 10**400]
)
def test_a_reward_is_a_finite_number_or_none(value):
    with pytest.raises(RewardError, match="finite number or None"):
        Verdict(Status.WRONG, value)
    with pytest.raises(RewardError, match="finite number or None"):
        to_verdict(value)


@pytest.mark.parametrize(
    ("value", "status", "reward"),
    [
        (1, Status.RIGHT, 1.0),
        (True, Status.RIGHT, 1.0),
        (False, Status.WRONG, 0.0),
        (0.5, Status.WRONG, 0.5),
        (-2, Status.WRONG, -2.0),
        (np.float32(0.25), Status.WRONG, 0.25),
        (np.array(1.0), Status.RIGHT, 1.0),
        (None, Status.NO_ANSWER, None),
    ],
)
def test_values_become_verdicts(value, status, reward):
    verdict = to_verdict(value)
    assert verdict.status is status
    assert verdict.reward == reward
    assert reward is None or type(verdict.reward) is float


def test_a_verdict_stays_as_it_is():
    verdict = Verdict.timeout("slow", by_completion=True)
    assert to_verdict(verdict) is verdict


def test_who_caused_it_decides_whether_it_scores():
    assert Verdict.timeout(by_completion=True).reward == 0.0
    assert Verdict.timeout(by_completion=False).reward is None
    assert Verdict.fault("crash", by_completion=True).reward == 0.0
    assert Verdict.fault("crash", by_completion=False).reward is None
    assert Verdict.bad_gold("prose").reward is None


def test_status_and_reward_do_not_contradict():
    with pytest.raises(RewardError, match="not scored"):
        Verdict(Status.RIGHT, None)
    with pytest.raises(RewardError, match="bad gold"):
        Verdict(Status.BAD_GOLD, 1.0)
    with pytest.raises(ValueError, match="fine"):
        Verdict("fine", 1.0)


def test_tally_counts_each_status_and_the_watched_shares():
    counts = tally(
        [
            Verdict.right("4"),
            Verdict.wrong("5"),
            Verdict.timeout(by_completion=True),
            Verdict.fault("x", by_completion=False),
            Verdict.bad_gold("prose"),
        ]
    )
    assert {key: counts[key] for key in map(str, Status)} == {
        "right": 1,
        "wrong": 1,
        "no-answer": 0,
        "bad-gold": 1,
        "timeout": 1,
        "fault": 1,
    }
    assert counts["unscored_share"] == pytest.approx(2 / 5)
    assert counts["timeout_share"] == pytest.approx(1 / 5)
    assert counts["fault_share"] == pytest.approx(1 / 5)
    assert tally([])["unscored_share"] == 0
