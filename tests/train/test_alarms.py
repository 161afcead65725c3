"""Alarms speak when, and only when, the figures of a step say that something is broken."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from short_runs import metrics, rollouts
from tiny_run import tiny_run

from phloem import AlarmsConfig, ConfigError, RunConfig, SampleConfig, TrainConfig
from phloem.rewards import Verdict, tally
from phloem.train import TrainError
from phloem.train.alarms import ALARMS, REMINDER, Alarms

NAN = float("nan")
HEALTHY = {
    "step": 1,
    "packs": 1,
    "reward": 0.5,
    "truncated": 0.25,
    "zero_spread": 0.5,
    "sampled/zero_spread": 0.5,
    "sampled/reward": 0.5,
    "loss": 0.0,
    "ratio": 1.0,
    "kl_old": 0.0,
    "kl_ref": 0.01,
    "entropy": 1.0,
    "gap": 0.0,
    "grad_norm": 1.0,
}
CLIPPED = {"truncated": 1.0, "zero_spread": 1.0, "sampled/zero_spread": 1.0}


def figures(verdicts: list[Verdict] | None = None, **changes: Any) -> dict[str, Any]:
    """The figures of a step of these judgements, otherwise healthy."""
    judged = tally(verdicts or [Verdict.right()])
    return HEALTHY | {f"verdict/{name}": value for name, value in judged.items()} | changes


def judged(right: int, *others: Verdict) -> dict[str, Any]:
    return figures([*(Verdict.right() for _ in range(right)), *others])


def watch(name: str, steps: list[dict[str, Any]], **settings: Any) -> list[str | None]:
    """What one alarm says at each of these steps."""
    alarm = ALARMS[name](TrainConfig(alarms=AlarmsConfig(**settings)))
    return [alarm(step) for step in steps]


def spoken(said: list[str | None]) -> list[int]:
    """The steps, from 1, at which something was said."""
    return [n for n, message in enumerate(said, start=1) if message]


def test_a_healthy_step_raises_nothing():
    alarms = Alarms(TrainConfig())
    assert all(alarms(judged(9, Verdict.wrong(), Verdict.no_answer())) == [] for _ in range(50))


def test_every_alarm_has_a_threshold_that_can_be_switched_off_and_a_row_in_the_docs():
    settings = {field.name for field in fields(AlarmsConfig)} - {"window", "stop"}
    assert settings == set(ALARMS)
    off = Alarms(TrainConfig(alarms=AlarmsConfig(**dict.fromkeys(settings))))
    broken = figures([Verdict.fault("x", by_completion=False)], **CLIPPED, kl_ref=99.0, grad_norm=1e9)
    assert all(off(broken) == [] for _ in range(30))
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
    documented = dict(re.findall(r"^\| (\w+) \| .* \| ([\d.]+) \| .* \|$", page, re.MULTILINE))
    assert {name: float(value) for name, value in documented.items()} == {
        name: getattr(AlarmsConfig(), name) for name in settings
    }


@pytest.mark.parametrize("name", sorted(ALARMS))
def test_any_alarm_can_stop_a_run(name):
    alarms = AlarmsConfig(clipped=1, window=1, stop=(name,))
    broken = figures([Verdict.fault("no", by_completion=False)], **CLIPPED, kl_ref=9.0)
    found = Alarms(TrainConfig(alarms=alarms))
    found(figures())
    raised = found(broken | {"entropy": 0.01, "grad_norm": 50.0, "gap": 0.2})
    assert [alarm.name for alarm in raised] == list(ALARMS)
    assert [alarm.name for alarm in raised if alarm.stop] == [name]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"faults": -0.1}, r"alarms\.faults is -0\.1; it must be in \[0, 1\], or null: off"),
        ({"unscored": 1.5}, r"alarms\.unscored is 1\.5; it must be in \[0, 1\]"),
        ({"kl": 0.0}, r"alarms\.kl is 0\.0; it must be positive"),
        ({"clipped": 0}, r"alarms\.clipped is 0; it must be at least 1"),
        ({"stop": ["klipped"]}, r"alarms\.stop is \['klipped'\]; it takes a list of any of clipped, zero_spread"),
        ({"kl": None, "stop": ["kl"]}, r"alarms\.stop names kl, and alarms\.kl is off"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        AlarmsConfig(**settings)


def test_a_run_that_goes_on_has_the_alarms_of_one_that_never_stopped():
    steps = [figures(entropy=1.0, grad_norm=1.0, loss=NAN, packs=0)] * 6 + [figures(grad_norm=30.0, entropy=0.02)] * 6
    whole, again = (Alarms(TrainConfig(alarms=AlarmsConfig(window=4))) for _ in range(2))
    expected = [whole(step) for step in steps]
    as_read = [{key: None if value != value else value for key, value in step.items()} for step in steps[:8]]
    again.replay(as_read)
    assert [again(step) for step in steps[8:]] == expected[8:]
    assert any(expected[8:])


# ------------------------------------------------------------------------------------- nothing is learnt


def test_clipped_steps_are_announced_after_so_many_in_a_row():
    """A35."""
    config = TrainConfig(alarms=AlarmsConfig(clipped=3), sample=SampleConfig(thought_tokens=5))
    alarm = ALARMS["clipped"](config)
    said = [alarm(figures(**CLIPPED)) for _ in range(7)]
    assert spoken(said) == [3, 6]
    assert "for 3 steps every rollout hit its budget of 37 tokens" in str(said[2])
    assert "raise sample.thought_tokens" in str(said[2])


@pytest.mark.parametrize("changes", [{"truncated": 0.9}, {"zero_spread": 0.9}])
def test_one_rollout_that_ended_or_one_spread_starts_the_row_again(changes):
    steps = [CLIPPED, CLIPPED | changes, CLIPPED, CLIPPED]
    assert spoken(watch("clipped", [figures(None, **step) for step in steps], clipped=2)) == [4]


def test_groups_that_nobody_scored_have_no_spread():
    assert watch("clipped", [figures(truncated=1.0, zero_spread=NAN)], clipped=1) != [None]


def test_equal_rewards_are_announced_when_they_last():
    steps = [
        figures(**{"sampled/zero_spread": share, "sampled/reward": 0.0})
        for share in (1.0, NAN, 1.0, 0.5, 1.0, 1.0, 1.0)
    ]
    said = watch("zero_spread", steps, window=3, zero_spread=0.9)
    assert spoken(said) == [7]
    assert "over the last 3 steps 100% of the groups had no spread of rewards (mean reward 0.00)" in str(said[6])


# -------------------------------------------------------------------------------------- broken judgements


@pytest.mark.parametrize("by_completion", [True, False])
def test_faults_and_time_outs_count_together_scored_or_not(by_completion):
    broken = (Verdict.fault("x", by_completion=by_completion), Verdict.timeout("x", by_completion=by_completion))
    below, above = watch("faults", [judged(8, broken[0]), judged(8, *broken)], faults=0.15)  # 1 of 9, 2 of 10
    assert below is None
    assert above == (
        "20% of the step's judgements broke off (1 faults, 1 time-outs), more than alarms.faults 0.15: mend "
        "the reward, or give it more time; rollouts.jsonl gives the reason of each as `detail`"
    )


def test_a_share_at_the_threshold_is_still_well():
    broken = Verdict.fault("x", by_completion=False)
    assert watch("faults", [judged(1, broken)], faults=0.5) == [None]
    assert watch("unscored", [judged(1, broken)], unscored=0.5) == [None]
    assert watch("faults", [judged(0, broken)], faults=1.0) == [None]


def test_unscored_rollouts_name_the_cause():
    (message,) = watch("unscored", [judged(2, Verdict.bad_gold("prose"), Verdict.bad_gold("prose"))])
    assert "50% of the step's rollouts were not scored and train nothing" in str(message)
    assert "2 of them have an unusable gold answer; `phloem doctor` lists such rows" in str(message)
    nothing_kept = ALARMS["unscored"](TrainConfig(run=RunConfig(save_rollouts=False)))
    message = str(nothing_kept(judged(1, Verdict.no_answer(reward=None))))
    assert "find out why the reward gives them none; run.save_rollouts true keeps the reason" in message


def test_a_row_of_broken_steps_is_announced_once_and_then_now_and_again():
    broken = judged(1, Verdict.fault("x", by_completion=True))
    said = watch("faults", [*[broken] * (2 * REMINDER + 1), judged(1), broken])
    assert spoken(said) == [1, REMINDER, 2 * REMINDER, 2 * REMINDER + 3]
    assert f"for {REMINDER} steps in a row" in str(said[REMINDER - 1])


# ------------------------------------------------------------------------------------------ falling apart


@pytest.mark.parametrize(
    ("figure", "remedy"), [("kl_ref", "raise credit.beta"), ("kl_old", "lower optim.lr or optim.updates_per_step")]
)
def test_a_policy_far_away_is_announced_with_the_remedy_for_which_kl_it_is(figure, remedy):
    said = watch("kl", [figures(**{figure: 0.5}), figures(**{figure: 2.0}), figures(**{figure: NAN})])
    assert spoken(said) == [2]
    assert f"{figure} is 2.00 nats per token, above alarms.kl 1" in str(said[1])
    assert remedy in str(said[1])


def test_entropy_is_held_against_that_of_the_first_steps():
    values = [4.0, 2.0, NAN, 1.0, 0.5, 0.3, 0.3]  # the first window of two: 3.0
    said = watch("entropy", [figures(entropy=value) for value in values], window=2, entropy=0.2)
    assert spoken(said) == [6]
    assert "0.400 nats, 13% of that of the first ones, below alarms.entropy 0.2" in str(said[5])


def test_a_gradient_spike_is_the_papers_score_above_the_threshold():
    norms = [50.0, 1.0, 0.0, 3.0, 54.1, 180.0, 281.0]  # 0: a step without an update
    said = watch("spikes", [figures(grad_norm=norm) for norm in norms], window=3, spikes=3.0)
    # After three updates: 54.1 / 18, 180 / 27.03, 281 / 57.6
    assert spoken(said) == [5, 6, 7]
    assert "the gradient's norm 180 is 6.7 times the mean of the 4 steps before" in str(said[5])


def test_a_gap_between_sampler_and_trainer_is_announced_with_its_level():
    """E03: logprobs drift apart (0.015, then 0.20) and nothing else shows it."""
    said = watch("gap", [figures(gap=gap) for gap in (0.015, 0.1, 0.2, NAN)])
    assert spoken(said) == [3]
    assert "0.200 nats per token from the trainer's, above alarms.gap 0.1" in str(said[2])


@pytest.mark.parametrize("name", ["loss", "kl_ref", "gap", "grad_norm"])
@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_a_figure_that_is_no_number_always_stops(name, value):
    (raised, *_) = Alarms(TrainConfig())(figures(step=7, **{name: value}))
    assert raised.stop
    assert raised.message.startswith(f"{name} of step 7 is not finite: lower optim.lr")
    assert Alarms(TrainConfig())(figures(packs=0, **{name: NAN})) == []  # nothing was trained: no figure


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
    found = metrics(tmp_path / "run", "alarm")
    assert [(line["step"], line["name"], line["stop"]) for line in found] == [
        (1, "faults", False),
        (1, "unscored", False),
    ]
    said = capsys.readouterr().out
    assert all(f"WARNING: {line['message']}" in said for line in found)
    leaves = [segment for group in rollouts(tmp_path / "run") for segment in group["segments"] if "verdict" in segment]
    verdicts = {leaf["verdict"] for leaf in leaves}
    assert "fault" in verdicts
    assert verdicts <= {"fault", "right", "wrong"}
    for leaf in leaves:
        assert ("RuntimeError: the judge is out" in leaf.get("detail", "")) == (leaf["verdict"] == "fault")


@pytest.mark.model
def test_an_alarm_that_stops_a_run_leaves_the_policy_and_its_reason(tmp_path):
    alarms = replace(AlarmsConfig(), unscored=0.0, stop=("unscored",))
    with pytest.raises(TrainError, match=r"were not scored and train nothing, more than alarms\.unscored 0"):
        tiny_run(tmp_path, reward=lambda completion, answer, row: None, sections={"alarms": alarms})
    assert [(line["name"], line["stop"]) for line in metrics(tmp_path / "run", "alarm")] == [("unscored", True)]
    assert (tmp_path / "run" / "model" / "config.json").exists()
