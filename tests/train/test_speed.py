"""Rates and what is logged of them: the figures follow from counted FLOPs and measured seconds, and leave no trace."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from groups import Shape, random_group
from tiny_models import tiny_model

from phloem import ForkConfig, ModelConfig, OptimConfig, RunConfig, SampleConfig, TrainConfig, presets
from phloem.forward import prepare
from phloem.forward.plan import ModelSize, flop_ceiling, tree_flops
from phloem.forward.rate import matmul_rate, rows_rate
from phloem.train.speed import Speed, expected_plan, matmul_dtype
from phloem.train.step import Batch, Objective, make_batch, update

pytestmark = pytest.mark.model

OBJECTIVE = Objective(presets.get("grpo"))


class Policy:
    """What the measure needs of a run's policy."""

    def __init__(self, **settings: Any) -> None:
        self.model = tiny_model("llama").train()
        self.engine = prepare(self.model, "paths")
        self.device = torch.device("cpu")
        self.config = TrainConfig(**settings)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def autocast(self):
        return torch.autocast("cpu", enabled=False)

    def prompt_ids(self, example: int) -> np.ndarray:
        return np.arange(example)


def a_policy(**settings: Any) -> Any:
    """Of no type, as it stands in for the run's."""
    return Policy(**settings)


def a_batch(pack_tokens: int = 64) -> Batch:
    rng = np.random.default_rng(3)
    return make_batch([random_group(rng, Shape(levels=2)) for _ in range(3)], OBJECTIVE, pack_tokens, "cpu")


def test_figures_of_a_step_follow_from_flops_and_seconds() -> None:
    policy, batch = a_policy(), a_batch()
    speed, size = Speed(policy), ModelSize.of(policy.model)
    for _ in range(2):
        with speed.timed():
            update(policy.model, batch, OBJECTIVE, policy)
    policy.model.zero_grad(set_to_none=True)
    speed.compare_with_rows(batch)
    trees = [tree for part in batch.packs for tree in part.pack.trees]
    found = speed.figures(batch)
    seconds, flops = found["seconds/passes"], 2 * tree_flops(size, trees)
    assert seconds > 0
    assert found["flop_ceiling"] == flop_ceiling(size, trees) > 1
    assert found["ceiling_share"] == pytest.approx(flops / seconds / speed.rows)
    assert found["mfu"] == pytest.approx(flops / seconds / speed.peak)
    assert found["distinct_per_second"] == pytest.approx(2 * sum(map(len, trees)) / seconds)
    assert all(math.isnan(value) for value in speed.figures(batch).values())  # nothing since


def test_rows_are_timed_once_if_wanted_and_leave_no_trace() -> None:
    policy, batch = a_policy(), a_batch()
    speed = Speed(policy)
    state = torch.get_rng_state()
    speed.compare_with_rows(batch)
    first = speed.rows
    speed.compare_with_rows(batch)
    assert speed.rows == first > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in policy.model.parameters())
    for settings in ({"run": RunConfig(time_rows=False)}, {"optim": OptimConfig(pack_tokens=3)}):
        other = Speed(a_policy(**settings))
        other.compare_with_rows(batch)
        assert math.isnan(other.rows)


def test_rates_are_those_of_the_machine_not_of_the_padding() -> None:
    policy, batch = a_policy(), a_batch()
    groups = [tree.group for part in batch.packs for tree in part.pack.trees]
    peak = matmul_rate(policy.device, torch.float32)
    assert 1e8 < peak < 1e14
    assert 0 < rows_rate(policy.model, groups, policy, ModelSize.of(policy.model), 1.0, 64) < peak


def test_the_expected_plan_takes_budgets_and_the_usual_prompt() -> None:
    sample = SampleConfig(thoughts=4, answers=4, thought_tokens=250, answer_tokens=50)
    task: Any = SimpleNamespace(train=[40, 50, 90])
    plan = expected_plan(a_policy(sample=sample), task)
    assert (plan.tree_tokens, plan.row_tokens, plan.packs) == (4 * 1850, 4 * 5600, 4)
    rollouts = expected_plan(a_policy(sample=SampleConfig(thoughts=8, answers=1)), task)
    assert rollouts.row_tokens == 4 * 8 * (50 + 96)
    forks = (ForkConfig(2, 30, "</plan>"), ForkConfig(3, 20))
    deeper = expected_plan(Policy(sample=SampleConfig(forks=forks)), task)  # type: ignore[arg-type]
    assert (deeper.tree_tokens, deeper.row_tokens) == (4 * (50 + 60 + 120), 4 * 6 * 100)


def test_the_peak_is_that_of_the_dtype_products_run_in() -> None:
    assert matmul_dtype(TrainConfig()) is torch.float32
    assert matmul_dtype(TrainConfig(model=ModelConfig(dtype="bfloat16"))) is torch.bfloat16
    assert matmul_dtype(TrainConfig(model=ModelConfig(autocast=True))) is torch.bfloat16
