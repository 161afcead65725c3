"""What several connected processes do in tests; here, where a fresh process can import it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from short_runs import quick_train
from tiny_models import tiny_model
from update_machine import Plain

from phloem import OptimConfig, TrainConfig, presets
from phloem.forward import prepare
from phloem.loss import LossSums
from phloem.tasks import Example, ExampleTask
from phloem.train.folder import RunFolder
from phloem.train.optimiser import Optimiser
from phloem.train.ranks import Ranks
from phloem.train.step import Objective, make_batch, update
from phloem.tree import Group, Segment


@dataclass(frozen=True)
class Step:
    """What an update left behind in a process."""

    gradient: np.ndarray
    metrics: dict[str, float]
    digest: str
    packs: int


@cache
def prepared_model() -> torch.nn.Module:
    model = tiny_model("llama")
    prepare(model, announce=lambda line: None)
    return model


def step_taken(groups: list[Group], name: str, pack_tokens: int, ranks: Ranks, updates: int = 1) -> Step:
    """Gradient (over all processes) of the last of so many updates without a step of the optimiser."""
    model = prepared_model()
    model.zero_grad()
    objective = Objective(presets.get(name, max_completion_tokens=20, beta=0.05), temperature=0.9, entropy=0.01)
    batch = make_batch(groups, objective, pack_tokens, "cpu", ranks)
    batch = replace(batch, packs=tuple(replace(p, ref_E=p.sampled_E.nan_to_num()) for p in batch.packs))
    optimiser = Optimiser(dict(model.named_parameters()), OptimConfig(lr=1e-3))
    sums = LossSums()
    for _ in range(updates):
        model.zero_grad()
        batch, own = update(model, batch, objective, Plain())
        sums = LossSums.total(ranks.gather(own))
        optimiser.add_up(ranks)
    gradient = np.concatenate([p.grad.flatten().numpy() for p in model.parameters() if p.grad is not None])
    digest = hashlib.blake2b(gradient.tobytes()).hexdigest()
    return Step(gradient, sums.metrics(), digest, batch.pack_count)


def all_steps(groups: list[Group], budgets: tuple[int, ...]) -> dict[tuple[str, int], Step]:
    ranks = Ranks.join()
    steps = {}
    for name in presets.names():
        for budget in budgets:
            step = step_taken(groups, name, budget, ranks)
            steps[name, budget] = step if ranks.first else replace(step, gradient=np.zeros(0))
    return steps


def long_and_short() -> list[Group]:
    """One group of 10 sampled tokens, one of 1000."""
    rng = np.random.default_rng(1)

    def group(length: int) -> Group:
        rows = [rng.integers(0, 50, length) for _ in range(2)]
        segments = [Segment(row, logprobs=-rng.random(length)) for row in rows]
        return Group(np.array([1, 2]), tuple(segments)).with_rewards([1.0, 0.0])

    return [group(5), group(500)]


def lopsided(names: list[str]) -> list[Step]:
    return [step_taken(long_and_short(), name, 4096, Ranks.join()) for name in names]


def letters(completion: str, answer: Any, row: Any) -> float:
    """Prompts 0 to 2 pay every rollout alike, so that their groups are replaced where a run refills."""
    return 1.0 if answer in "012" else float(len(set(completion)))


def recorded_run(config: TrainConfig, resume: bool = False) -> dict[str, Any]:
    """A run, and what this process would have logged: its metrics, its groups, its weights."""
    lines: dict[str, list[Any]] = {"metrics": [], "rollouts": []}
    metrics, rollouts = RunFolder.metrics, RunFolder.rollouts

    def spy_metrics(self: RunFolder, record: dict[str, Any]) -> None:
        lines["metrics"].append(record)
        metrics(self, record)

    def spy_rollouts(self: RunFolder, records: Iterable[dict[str, Any]]) -> None:
        lines["rollouts"] += (records := list(records))
        rollouts(self, records)

    problems = [Example(str(n), f"{n}?", str(n), demonstrations=("<think>x</think>1",)) for n in range(8)]
    with patch.multiple(RunFolder, metrics=spy_metrics, rollouts=spy_rollouts):
        result = quick_train(config, ExampleTask("letters", problems, problems, reward=letters), resume=resume)
    weights = {name: p.detach().numpy() for name, p in result.model.named_parameters()}
    return {**lines, "weights": weights, "after": result.after.rewards_Bn if result.after else None}


def sharded_run(config: TrainConfig, first: TrainConfig | None = None, sharded: bool = True) -> dict[str, Any]:
    """The same with sharded weights; after a shorter run to go on from, `sharded` or not, if one is given."""
    os.environ |= {"ACCELERATE_USE_FSDP": str(sharded), "FSDP_VERSION": "2"}
    if first is not None:
        recorded_run(first)
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    return recorded_run(config, resume=first is not None)


def plain_run(config: TrainConfig) -> None:
    """A run, begun or gone on with, as its folder says."""
    problems = [Example(str(n), f"{n}?", str(n)) for n in range(8)]
    begun = (Path(config.run.folder or "") / "config.yaml").exists()
    quick_train(config, ExampleTask("letters", problems, problems, reward=letters), resume=begun)


def gradients_added_up() -> list[list[float] | None]:
    """Of three parameters both processes used the first, one the second, and nobody the third."""
    ranks = Ranks.join()
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    for used in range(2 - ranks.rank):
        parameters[used].grad = torch.full((2,), 1.0 + used)
    ranks.add_up_gradients(parameters)
    return [None if p.grad is None else p.grad.tolist() for p in parameters]
