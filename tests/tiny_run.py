"""A whole run on a tiny random model: cold start, evaluations, one step of two updates, everything logged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from short_runs import quick_train
from tiny_models import save_tiny_model

from phloem import (
    ColdStartConfig,
    CreditConfig,
    EvaluationConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    TrainConfig,
)
from phloem.tasks import Example, ExampleTask
from phloem.train import RunResult


def distinct_letters(completion: str, answer: Any, row: Any) -> float:
    return float(len(set(completion)))


def tiny_run(
    folder: Path, reward: Any = distinct_letters, sections: dict[str, Any] | None = None, **run: Any
) -> RunResult:
    """Trains in `folder/run`, with the model of `folder/model`; `run` changes settings of the run section, `sections`
    replaces others."""
    problems = [Example(str(n), f"{n}?", str(n), demonstrations=("<think>x</think>1",)) for n in range(4)]
    config = TrainConfig(
        model=ModelConfig(path=str(save_tiny_model(folder / "model"))),
        cold_start=ColdStartConfig(steps=1, batch_size=2),
        sample=SampleConfig(thoughts=2, answers=2, thought_tokens=6, answer_tokens=4),
        credit=CreditConfig(preset="grpo-ma"),
        optim=OptimConfig(steps=1, prompts_per_step=2, updates_per_step=2, lr=1e-3),
        evaluation=EvaluationConfig(prompts=2, samples=2),
        run=replace(RunConfig(folder=str(folder / "run"), view="none"), **run),
    )
    config = replace(config, **(sections or {}))
    return quick_train(config, ExampleTask("letters", problems, problems, reward=reward))
