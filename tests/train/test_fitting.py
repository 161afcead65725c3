"""Prompts that are too long are an error that names one, or left out and counted."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phloem import ConfigError, EvaluationConfig, OptimConfig, SampleConfig, TaskConfig, TrainConfig
from phloem.tasks import Example, ExampleTask
from phloem.train.fitting import fit_prompts


def policy(context: int | None, evaluated: int | None = None, **task: Any) -> Any:
    """Prompts of as many tokens as they have letters; completions of 10."""
    config = TrainConfig(
        task=TaskConfig(**task),
        sample=SampleConfig(thought_tokens=6, answer_tokens=4),
        optim=OptimConfig(prompts_per_step=2),
        evaluation=EvaluationConfig(prompts=evaluated),
    )
    text = SimpleNamespace(max_position_embeddings=context)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    return SimpleNamespace(model=model, config=config, prompt_ids=lambda example: np.zeros(len(example.prompt)))


def task(train: list[int], held_out: list[int]) -> ExampleTask:
    examples = [Example(f"row-{n}", "x" * n, "") for n in (*train, *held_out)]
    return ExampleTask("rows", examples[: len(train)], examples[len(train) :], reward=lambda *_: 0.0)


def test_what_fits_is_left_alone():
    rows = task([1, 20], [20])
    assert fit_prompts(policy(30), rows, pytest.fail) is rows
    assert fit_prompts(policy(None), rows, pytest.fail) is rows


def test_a_prompt_that_is_too_long_is_named_with_the_limit_it_breaks():
    with pytest.raises(
        ConfigError, match=r"example row-21 has 21 tokens, which with 10 for the completion is over .* 30"
    ):
        fit_prompts(policy(30), task([1, 21], [2]), pytest.fail)
    with pytest.raises(ConfigError, match=r"2 of 3 prompts.*row-9 has 9 tokens, over task\.max_prompt_tokens 8"):
        fit_prompts(policy(30, max_prompt_tokens=8), task([1, 9], [10]), pytest.fail)


def test_held_out_prompts_that_are_not_sampled_may_be_long():
    rows = task([1, 2], [3, 99])
    assert fit_prompts(policy(30, evaluated=1), rows, pytest.fail) is rows


def test_long_prompts_are_left_out_and_counted():
    said: list[str] = []
    kept = fit_prompts(policy(30, long_prompts="drop"), task([1, 2, 21, 22], [3, 99]), said.append)
    assert [e.id for e in (*kept.train, *kept.held_out)] == ["row-1", "row-2", "row-3"]
    assert said == ["rows: 3 of 6 prompts have more than 20 tokens and are left out: row-21, row-22, row-99"]


def test_examples_of_two_files_may_be_called_the_same():
    """train/rows.jsonl and test/rows.jsonl, or two splits of a hub data set."""
    rows = task([1, 2, 3], [21, 4])
    rows = replace(
        rows, held_out=[replace(e, id=other.id) for e, other in zip(rows.held_out, rows.train, strict=False)]
    )
    kept = fit_prompts(policy(30, long_prompts="drop"), rows, lambda said: None)
    assert [len(e.prompt) for e in (*kept.train, *kept.held_out)] == [1, 2, 3, 4]


def test_too_few_that_fit_is_an_error():
    with pytest.raises(ConfigError, match="task rows has 1 training examples"):
        fit_prompts(policy(30, long_prompts="drop"), task([1, 21], [2]), lambda said: None)
