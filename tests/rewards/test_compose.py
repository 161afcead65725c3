"""Sums, gates and the scoring of a batch."""

import pytest

from phloem.rewards import Format, Gate, Number, RewardError, Status, Verdict, WeightedSum, score_all

GOOD = "<think>a</think><answer>85</answer>"
LOOSE = "<answer>85</answer>"
WRONG = "<think>a</think><answer>86</answer>"


def score(reward, completions, answer="85"):
    return score_all(reward, completions, [answer] * len(completions), [{}] * len(completions))


def rewards(*args, **kwargs):
    return [verdict.reward for verdict in score(*args, **kwargs)]


def test_five_completions_two_unreadable_give_five_verdicts_in_place():
    completions = [GOOD, "<answer>?</answer>", WRONG, "<think>", GOOD]
    assert rewards(Number(), completions) == [1, 0, 0, 0, 1]


def test_a_gate_needs_both():
    strict = Gate(Format(), Number())
    verdicts = score(strict, [GOOD, LOOSE, WRONG])
    assert [verdict.reward for verdict in verdicts] == [1, 0, 0]
    assert "single <think>" in verdicts[1].detail
    assert verdicts[1].status is Status.WRONG


def test_a_closed_gate_does_not_score_what_has_no_gold():
    assert rewards(Gate(Format(), Number()), [GOOD, LOOSE], answer="prose") == [None, None]


def test_a_weighted_sum_adds_up_and_keeps_the_first_status():
    verdicts = score(WeightedSum(((Number(), 1.0), (Format(), 0.25))), [GOOD, LOOSE, WRONG, ""])
    assert [verdict.reward for verdict in verdicts] == [1.25, 1.0, 0.25, 0.0]
    assert [verdict.status for verdict in verdicts] == ["right", "right", "wrong", "no-answer"]


def test_parts_that_abstain_add_nothing_and_none_is_not_zero():
    abstain = lambda completion, answer, row: None  # noqa: E731
    assert rewards(WeightedSum(((abstain, 1.0), (Format(), 0.5))), [GOOD]) == [0.5]
    assert rewards(WeightedSum(((abstain, 1.0), (abstain, 1.0))), [GOOD]) == [None]


def test_a_part_that_failed_leaves_the_sum_unscored():
    def broken(completion, answer, row):
        raise OSError("disk")

    (verdict,) = score(WeightedSum(((Format(), 0.5), (broken, 1.0))), [GOOD])
    assert verdict.reward is None
    assert verdict.status is Status.FAULT
    with pytest.raises(RewardError, match="at least one"):
        WeightedSum(())


def test_a_batch_reward_must_answer_for_each():
    class Short:
        def score_batch(self, completions, answers, rows):
            return [Verdict.right()]

    with pytest.raises(RewardError, match="1 verdicts for 2"):
        score(Short(), [GOOD, GOOD])
    with pytest.raises(RewardError, match="1 completions, 2 answers"):
        score_all(Number(), [GOOD], ["1", "2"], [{}])


def test_a_raising_reward_is_an_unscored_fault_and_the_first_keeps_its_traceback():
    def broken(completion, answer, row):
        raise ValueError(f"cannot read {completion}")

    first, second = score(broken, ["one", "two"])
    assert first.status is second.status is Status.FAULT
    assert first.reward is None
    assert "Traceback" in first.detail
    assert "cannot read one" in first.detail
    assert "Traceback" not in second.detail
    assert "cannot read two" in second.detail


def test_leaving_the_interpreter_is_a_fault():
    def leaving(completion, answer, row):
        raise SystemExit(0)

    assert score(leaving, ["one"])[0].status is Status.FAULT


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1"])
def test_other_values_stop_the_run_and_say_where(value):
    def odd(completion, answer, row):
        return value if completion == "two" else 0.0

    with pytest.raises(RewardError, match=r"odd, completion 1 of the batch: .*finite number or None") as caught:
        score(odd, ["one", "two"])
    assert caught.value.index == 1


def test_something_that_is_no_reward_is_refused():
    with pytest.raises(RewardError, match="is no reward"):
        score("number", [GOOD])
