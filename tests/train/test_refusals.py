"""Runs that are stopped, that cannot be, or in which nothing is learnt: none ends as if it were well."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from letters_run import letters, letters_config
from short_runs import metrics, quick_train
from transformers import AutoModelForCausalLM

from phloem import (
    AlarmsConfig,
    ColdStartConfig,
    CreditConfig,
    EvaluationConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    TaskConfig,
)
from phloem.config import ConfigError
from phloem.kinds import PhloemError
from phloem.tasks import Example, ExampleTask, TaskError
from phloem.train import TrainError

pytestmark = pytest.mark.model


def test_a_run_that_is_stopped_keeps_its_policy(model_folder, tmp_path, capsys):
    calls = iter(range(10**6))

    def stops(completion: str, answer: str, row: Any) -> float:
        n = next(calls)
        if n >= 20:
            raise KeyboardInterrupt
        return float(n % 2)

    wanted = letters_config(
        model_folder,
        tmp_path / "run",
        optim=OptimConfig(steps=9, prompts_per_step=2, lr=1e-3),
        run=RunConfig(folder=str(tmp_path / "run"), view="plain"),
    )
    with pytest.raises(KeyboardInterrupt):
        quick_train(wanted, letters(stops))
    assert "stopped after step 2; the policy of then is in" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model") is not None


def test_a_last_evaluation_that_is_cut_short_loses_no_weights(model_folder, tmp_path, monkeypatch):
    from phloem.train.evaluation import Evaluator

    def interrupted(self, step: int, prompts: int, title: str) -> None:
        if step:
            raise KeyboardInterrupt

    monkeypatch.setattr(Evaluator, "__call__", interrupted)
    run = RunConfig(folder=str(tmp_path / "run"), view="none")
    with pytest.raises(KeyboardInterrupt):
        quick_train(letters_config(model_folder, tmp_path / "run", run=run), letters())
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model") is not None


def test_a_prompt_that_leaves_no_room_is_named_before_the_first_step(model_folder, tmp_path):
    long = [Example("short", "a", "a"), Example("the-long-one", "ab" * 300, "a")]
    task = ExampleTask("letters", long, long, letters().reward)
    with pytest.raises(ConfigError, match=r"example the-long-one has 6\d\d tokens.*context of 512"):
        quick_train(letters_config(model_folder, tmp_path / "run"), task)


def test_a_run_that_changed_nothing_is_an_error(model_folder, tmp_path):
    """D06, C11: equal rewards everywhere leave every weight as it was."""
    with pytest.raises(TrainError, match="changed no weight"):
        quick_train(letters_config(model_folder, tmp_path / "run"), letters(lambda completion, answer, row: 1.0))
    assert all(r["zero_spread"] == 1.0 and r["grad_norm"] == 0.0 for r in metrics(tmp_path / "run", "train"))


def test_rollouts_that_nobody_scored_train_nothing_and_are_counted(model_folder, tmp_path):
    """A03 on the way through the loop: None is not 0."""
    calls = iter(range(10**6))

    def sometimes(completion: str, answer: str, row: Any) -> float | None:
        n = next(calls)
        return None if n % 4 == 0 else float(n % 4 == 1)

    quick_train(letters_config(model_folder, tmp_path / "run"), letters(sometimes))
    for record in metrics(tmp_path / "run", "train"):
        assert record["reward"] == pytest.approx(1 / 3)
        assert record["verdict/unscored_share"] == pytest.approx(1 / 4)
        assert np.isfinite(record["loss"])


def test_budgets_too_short_for_anything_are_announced(model_folder, tmp_path, capsys):
    """A35: all rollouts clipped and all groups without a spread, step after step."""

    def long_only(completion: str, answer: str, row: Any) -> float:
        return float(len(completion) > 500)

    wanted = letters_config(
        model_folder,
        tmp_path / "run",
        sample=SampleConfig(thoughts=4, answers=1, thought_tokens=1, answer_tokens=1, temperature=0.05),
        optim=OptimConfig(steps=4, prompts_per_step=2, lr=1e-3),
        run=RunConfig(folder=str(tmp_path / "run"), view="plain", save_model=False),
        alarms=AlarmsConfig(clipped=2),
    )
    with pytest.raises(TrainError):
        quick_train(wanted, letters(long_only))
    said = capsys.readouterr().out
    assert "for 2 steps every rollout hit its budget of 2 tokens" in said
    assert "raise sample.thought_tokens" in said
    stopping = AlarmsConfig(clipped=2, stop=("clipped",))
    with pytest.raises(TrainError, match="for 2 steps"):
        quick_train(
            replace(wanted, run=replace(wanted.run, folder=str(tmp_path / "stop")), alarms=stopping), letters(long_only)
        )
    assert len(metrics(tmp_path / "stop", "train")) == 2


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_examples_than_a_batch_is_an_error_before_a_model_loads(tmp_path, count):
    """C11."""
    wanted = letters_config(tmp_path / "nowhere", tmp_path / "run", optim=OptimConfig(steps=1, prompts_per_step=4))
    with pytest.raises(ConfigError, match=f"{count} training examples and optim.prompts_per_step is 4"):
        quick_train(wanted, letters(count=count))
    assert not (tmp_path / "run").exists()


def test_other_impossible_requests_are_errors_before_a_model_loads(tmp_path):
    nowhere = tmp_path / "nowhere"
    with pytest.raises(ConfigError, match=r"held-out examples and evaluation\.prompts"):
        quick_train(letters_config(nowhere, tmp_path / "a", evaluation=EvaluationConfig(prompts=100)), letters())
    bare = letters()
    bare = replace(bare, train=[replace(e, demonstrations=()) for e in bare.train])
    with pytest.raises(ConfigError, match="no demonstrations"):
        quick_train(letters_config(nowhere, tmp_path / "b", cold_start=ColdStartConfig(steps=1)), bare)
    with pytest.raises(ConfigError, match="did you mean 'grpo-ma'"):
        quick_train(letters_config(nowhere, tmp_path / "c", credit=CreditConfig(preset="grpo_ma")), letters())
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": 2}\n')
    data = TaskConfig(name="data", args={"path": str(tmp_path / "rows.jsonl"), "reward": "number"})
    with pytest.raises(TaskError, match="no column 'prompt'; it has question, answer"):  # C01
        quick_train(letters_config(nowhere, tmp_path / "d", task=data))


def test_a_folder_that_holds_a_run_is_not_written_over(model_folder, tmp_path):
    quick_train(letters_config(model_folder, tmp_path / "run"), letters())
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="holds a run already"):
        quick_train(letters_config(model_folder, tmp_path / "run"), letters())
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_gradient_that_is_not_finite_stops_the_run(model_folder, tmp_path, monkeypatch):
    from phloem.train import step as step_module

    monkeypatch.setattr(step_module, "surrogate", lambda new, *rest: new * float("nan"))
    with pytest.raises(TrainError, match=r"gradient of step \d is not finite"):
        quick_train(letters_config(model_folder, tmp_path / "run"), letters())


def test_weights_that_are_not_numbers_are_said_so(model_folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model_folder, broken)
    model = AutoModelForCausalLM.from_pretrained(broken)
    model.lm_head.weight.data.fill_(float("nan"))
    model.save_pretrained(broken)
    with pytest.raises((PhloemError, FloatingPointError), match=r"finite|numbers"):
        quick_train(letters_config(broken, tmp_path / "run"), letters())
