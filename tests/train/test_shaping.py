"""Rewards on their way to credit: DAPO's overlong punishment, and truncated rollouts that train nothing."""

from __future__ import annotations

import numpy as np
import pytest
from short_runs import metrics
from tiny_run import tiny_run

from phloem import ConfigError, CreditConfig, SampleConfig, TrainConfig, credit, presets
from phloem.rewards import Verdict
from phloem.train.metrics import shaping_metrics
from phloem.train.shaping import shaped
from phloem.tree import Finish, Group, Segment

BUDGET = 10


def config(**changes) -> TrainConfig:
    return TrainConfig(credit=CreditConfig(**changes), sample=SampleConfig(thought_tokens=6, answer_tokens=4))


def plain(lengths: list[int], rewards: list[float | None]) -> Group:
    """Rollouts of these lengths; those of the whole budget were cut off."""
    return Group(
        np.array([1]),
        tuple(
            Segment(np.full(n, r + 2), finish=Finish.LENGTH if n == BUDGET else Finish.STOP, reward=reward)
            for r, (n, reward) in enumerate(zip(lengths, rewards, strict=True))
        ),
    )


def test_without_the_settings_a_group_is_the_same_object():
    group = plain([1, BUDGET], [1.0, 0.0])
    assert shaped(group, config()) is group


def test_the_last_share_of_the_budget_costs_up_to_one():
    """Equation 13 of DAPO with L_max 10 and L_cache 4; not scored stays not scored."""
    group = plain([5, 6, 7, 9, 10, 10], [1.0, 1.0, 1.0, 0.0, 1.0, None])
    found = shaped(group, config(overlong_share=0.4)).rewards_R
    np.testing.assert_allclose(found, [1.0, 1.0, 0.75, -0.75, 0.0, np.nan])


def test_lengths_are_those_of_the_path_without_forced_text():
    thought = Segment(np.arange(2, 8), finish=Finish.FORK, sampled=np.array([True] * 4 + [False] * 2))
    answers = [Segment(np.full(n, 9), parent=0, reward=1.0) for n in (2, 4)]  # 6 and 8 sampled tokens
    found = shaped(Group(np.array([1]), (thought, *answers)), config(overlong_share=0.4)).rewards_R
    np.testing.assert_allclose(found, [1.0, 0.5])


def test_truncated_rollouts_leave_their_group():
    group = plain([3, 3, BUDGET, BUDGET], [1.0, 0.0, 1.0, 0.0])
    kept = plain([3, 3], [1.0, 0.0])
    masked = shaped(group, config(mask_truncated=True))
    rule = presets.get("dapo")
    found, wanted = credit.assign(masked, rule), credit.assign(kept, rule)
    assert masked.scored().group_size == 2
    np.testing.assert_allclose(found.advantage_B, wanted.advantage_B)
    np.testing.assert_allclose(found.c_pos_T, wanted.c_pos_T)


def test_both_are_counted():
    group = plain([3, 9, BUDGET, BUDGET], [1.0, 1.0, 1.0, None])
    verdicts = [[Verdict.right()] * 3 + [Verdict.fault("x", by_completion=False)]]
    found = shaping_metrics([shaped(group, config(overlong_share=0.4, mask_truncated=True))], verdicts)
    assert found == {"overlong": pytest.approx(-0.75 / 2), "masked": 0.25}
    assert shaping_metrics([group], verdicts) == {"overlong": 0.0, "masked": 0.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overlong_share": 1.5}, r"credit\.overlong_share is 1\.5; it must be in \[0, 1\]"),
        ({"tis_cap": 0.0}, r"credit\.tis_cap is 0\.0; it must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        config(**changes)


@pytest.mark.model
def test_a_run_shapes_masks_and_weighs(tmp_path):
    rule = CreditConfig(preset="dapo", overlong_share=0.5, mask_truncated=True, tis_cap=1.0)
    sample = SampleConfig(thoughts=16, answers=1, thought_tokens=6, answer_tokens=100, dtype="bfloat16")
    tiny_run(tmp_path, sections={"credit": rule, "sample": sample})
    (step,) = metrics(tmp_path / "run", "train")
    assert 0 < step["masked"] == step["truncated"] < 1
    assert -1 < step["overlong"] < 0
    assert 0.9 < step["tis_weight"] < 1  # the sampler rounds to bfloat16; weights above the cap are cut to it
