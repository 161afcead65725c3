"""Alarms speak when, and only when, the figures of a step say that something is broken."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tiny_run import tiny_run

from phloem import ConfigError, RunConfig, SampleConfig, TrainConfig
from phloem.rewards import Verdict, tally
from phloem.train.alarms import REMINDER, Alarms, ClippedAlarm, FaultAlarm, UnscoredAlarm

HEALTHY = {"truncated": 0.25, "zero_spread": 0.5}
CLIPPED = {"truncated": 1.0, "zero_spread": 1.0}


def with_run(**settings: Any) -> TrainConfig:
    return TrainConfig(run=RunConfig(**settings))


def figures(verdicts: list[Verdict] | None = None, **changes: Any) -> dict[str, Any]:
    """The figures of a step of these judgements, otherwise healthy."""
    judged = tally(verdicts or [Verdict.right()])
    return HEALTHY | {f"verdict/{name}": value for name, value in judged.items()} | changes


def judged(right: int, *others: Verdict) -> dict[str, Any]:
    return figures([*(Verdict.right() for _ in range(right)), *others])


def test_a_healthy_step_raises_nothing():
    alarms = Alarms(TrainConfig())
    assert all(alarms(judged(9, Verdict.wrong(), Verdict.no_answer())) == [] for _ in range(50))


# ----------------------------------------------------------------------------------------- too short a budget


def test_clipped_steps_are_announced_after_so_many_in_a_row():
    """A35."""
    alarm = ClippedAlarm(replace(with_run(clipped_alarm_steps=3), sample=SampleConfig(thought_tokens=5)))
    spoke = [alarm(figures(**CLIPPED)) for _ in range(7)]
    assert [message is not None for message in spoke] == [False, False, True, False, False, True, False]
    assert "for 3 steps every rollout hit its budget of 37 tokens" in str(spoke[2])
    assert "raise sample.thought_tokens" in str(spoke[2])


@pytest.mark.parametrize("changes", [{"truncated": 0.9}, {"zero_spread": 0.9}])
def test_one_rollout_that_ended_or_one_spread_starts_the_row_again(changes):
    alarm = ClippedAlarm(with_run(clipped_alarm_steps=2))
    steps = [CLIPPED, CLIPPED | changes, CLIPPED, CLIPPED]
    assert [alarm(figures(None, **step)) is not None for step in steps] == [False, False, False, True]


def test_groups_that_nobody_scored_have_no_spread():
    assert ClippedAlarm(with_run(clipped_alarm_steps=1))(figures(truncated=1.0, zero_spread=float("nan")))


def test_only_the_clipped_alarm_stops_a_run():
    alarms = Alarms(with_run(clipped_alarm_steps=1, clipped_alarm_stop=True))
    broken = Verdict.fault("no", by_completion=False)
    raised = alarms(figures([broken], **CLIPPED))
    assert [alarm.stop for alarm in raised] == [True, False, False]
    assert not any(alarm.stop for alarm in Alarms(with_run(clipped_alarm_steps=1))(figures([broken], **CLIPPED)))


# -------------------------------------------------------------------------------------------- broken rewards


@pytest.mark.parametrize("by_completion", [True, False])
def test_faults_and_time_outs_count_together_scored_or_not(by_completion):
    broken = (Verdict.fault("x", by_completion=by_completion), Verdict.timeout("x", by_completion=by_completion))
    alarm = FaultAlarm(with_run(fault_alarm_share=0.15))
    assert alarm(judged(8, broken[0])) is None  # 1 of 9
    message = alarm(judged(8, *broken))  # 2 of 10
    assert message == (
        "20% of the step's judgements broke off (1 faults, 1 time-outs), more than run.fault_alarm_share 0.15: mend "
        "the reward, or give it more time; rollouts.jsonl gives the reason of each as `detail`"
    )


def test_a_share_at_the_threshold_is_still_well():
    broken = Verdict.fault("x", by_completion=False)
    assert FaultAlarm(with_run(fault_alarm_share=0.5))(judged(1, broken)) is None
    assert UnscoredAlarm(with_run(unscored_alarm_share=0.5))(judged(1, broken)) is None
    assert FaultAlarm(with_run(fault_alarm_share=1.0))(judged(0, broken)) is None  # 1: off


def test_unscored_rollouts_name_the_cause():
    alarm = UnscoredAlarm(TrainConfig())
    message = str(alarm(judged(2, Verdict.bad_gold("prose"), Verdict.bad_gold("prose"))))
    assert "50% of the step's rollouts were not scored and train nothing" in message
    assert "2 of them have an unusable gold answer; `phloem doctor` lists such rows" in message
    nothing_kept = UnscoredAlarm(with_run(save_rollouts=False))
    message = str(nothing_kept(judged(1, Verdict.no_answer(reward=None))))
    assert "find out why the reward gives them none; run.save_rollouts true keeps the reason" in message


def test_a_row_of_broken_steps_is_announced_once_and_then_now_and_again():
    alarm, broken = FaultAlarm(TrainConfig()), judged(1, Verdict.fault("x", by_completion=True))
    spoke = [alarm(broken) for _ in range(2 * REMINDER + 1)]
    assert [n for n, message in enumerate(spoke, start=1) if message] == [1, REMINDER, 2 * REMINDER]
    assert f"for {REMINDER} steps in a row" in str(spoke[REMINDER - 1])
    assert alarm(judged(1)) is None
    assert alarm(broken) is not None


@pytest.mark.parametrize("name", ["fault_alarm_share", "unscored_alarm_share"])
@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_thresholds_are_shares(name, share):
    with pytest.raises(ConfigError, match=rf"run\.{name} is {share}; it must be in \[0, 1\]"):
        with_run(**{name: share})


# -------------------------------------------------------------------------------------------------- in a run


@pytest.mark.model
def test_a_run_prints_and_logs_alarms_and_keeps_the_reason_of_each_rollout(tmp_path, capsys):
    calls = iter(range(10**6))

    def sometimes_broken(completion: str, answer: str, row: Any) -> float:
        call = next(calls)
        if call % 4 == 0:
            raise RuntimeError("the judge is out")
        return float(call % 2)

    tiny_run(tmp_path, reward=sometimes_broken, view="plain")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    logged = [line for line in lines if line["kind"] == "alarm"]
    assert [line["step"] for line in logged] == [1, 1]
    assert "judgements broke off" in logged[0]["message"]
    assert "were not scored" in logged[1]["message"]
    said = capsys.readouterr().out
    assert all(f"WARNING: {line['message']}" in said for line in logged)
    rollouts = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text("utf-8").splitlines()]
    leaves = [segment for group in rollouts for segment in group["segments"] if "verdict" in segment]
    assert {"fault", "right", "wrong"} >= {leaf["verdict"] for leaf in leaves}
    for leaf in leaves:
        assert ("RuntimeError: the judge is out" in leaf.get("detail", "")) == (leaf["verdict"] == "fault")
