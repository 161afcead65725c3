import numpy as np
import pytest

from phloem.evaluate import HeldOut, paired_gain


def held_out(rewards: list[list[float]], ids: tuple[str, ...] | None = None) -> HeldOut:
    return HeldOut(ids or tuple(str(i) for i in range(len(rewards))), np.array(rewards), truncated=0.0)


def test_prompts_weigh_the_same_whatever_was_scored():
    found = held_out([[1.0, 0.0], [1.0, np.nan], [np.nan, np.nan]])
    np.testing.assert_array_equal(found.means_B, [0.5, 1.0, np.nan])
    assert found.mean == 0.75
    assert found.standard_error == pytest.approx(np.std([0.5, 1.0], ddof=1) / np.sqrt(2))


def test_a_gain_is_paired_by_prompt():
    before, after = held_out([[0.0], [1.0], [0.5]]), held_out([[0.25], [1.25], [0.75]])
    gain = paired_gain(before, after)
    assert (gain.mean, gain.low, gain.high, gain.prompts) == (0.25, 0.25, 0.25, 3)
    with pytest.raises(ValueError, match="different prompts"):
        paired_gain(before, held_out([[0.0]] * 3, ids=("a", "b", "c")))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        base = rng.random((100, 1))
        before = held_out((rng.random((100, 4)) < base).astype(float).tolist())
        after = held_out((rng.random((100, 4)) < np.clip(base + 0.05, 0, 1)).astype(float).tolist())
        truth = float(np.mean(np.clip(base + 0.05, 0, 1) - base))
        gain = paired_gain(before, after, draws=500)
        hits += gain.low <= truth <= gain.high
    assert 180 <= hits <= 199


def test_prompts_not_scored_on_both_sides_leave_the_pairs():
    gain = paired_gain(held_out([[np.nan], [0.0]]), held_out([[1.0], [1.0]]))
    assert (gain.mean, gain.prompts) == (1.0, 1)
    assert np.isnan(paired_gain(held_out([[np.nan]]), held_out([[1.0]])).mean)
