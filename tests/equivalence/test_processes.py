"""1, 2 and 4 processes, and 1, 2 and 8 packs, take the same step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from groups import Shape, random_group
from process_work import (
    Step,
    all_steps,
    gradients_added_up,
    long_and_short,
    lopsided,
    recorded_run,
    sharded_run,
    step_taken,
)
from several import several
from short_runs import untimed
from tiny_models import save_tiny_model, tiny_model
from update_machine import Plain

from phloem import (
    ColdStartConfig,
    CreditConfig,
    EvaluationConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    TrainConfig,
    presets,
)
from phloem.forward import prepare, split_into_packs
from phloem.train.optimiser import Optimiser
from phloem.train.ranks import Ranks
from phloem.train.step import Objective, make_batch, update
from phloem.tree import Group, PrefixTree

pytestmark = pytest.mark.model

SIZES = (2, 4)
PACKS = (1, 2, 8)


def step_groups(number: int = 8) -> list[Group]:
    rng = np.random.default_rng(0)
    shape = Shape(levels=3, vocabulary=9, longest=6, unscored=True, prompt=3)
    found: list[Group] = []
    while len(found) < number:
        group = random_group(rng, shape)
        if 24 <= len(PrefixTree.from_group(group.scored())) <= 44 and group.scored().group_size > 2:
            found.append(group)
    return found


def budget_for(groups: list[Group], packs: int) -> int:
    """Pack tokens with which one process makes so many packs, none of them over the budget."""
    trees = [PrefixTree.from_group(group.scored()) for group in groups]
    longest = max(map(len, trees))
    return next(budget for budget in (*range(longest, 10**4), 10**6) if len(split_into_packs(trees, budget)) <= packs)


def assert_same_step(found: Step, wanted: Step) -> None:
    gap = np.linalg.norm(found.gradient - wanted.gradient) / np.linalg.norm(wanted.gradient)
    assert gap < 1e-5
    for key, value in wanted.metrics.items():
        assert found.metrics[key] == pytest.approx(value, rel=1e-5, abs=1e-9), key


def test_a16_every_preset_takes_the_same_step_on_any_number_of_processes_and_packs():
    """A16: gradients are sums over ranks divided by counts over all of them, never means of ranks."""
    groups = step_groups()
    budgets = tuple(budget_for(groups, packs) for packs in PACKS)
    alone = {(n, b): step_taken(groups, n, b, Ranks()) for n in presets.names() for b in budgets}
    assert {alone["grpo", b].packs for b in budgets} == set(PACKS)
    for name in presets.names():
        for budget in budgets[1:]:
            assert_same_step(alone[name, budget], alone[name, budgets[0]])
    for size in SIZES:
        processes = several(size, all_steps, groups, budgets)
        for key, wanted in alone.items():
            assert_same_step(processes[0][key], wanted)
            for other in processes[1:]:
                assert other[key].digest == processes[0][key].digest
                assert other[key].metrics == processes[0][key].metrics


def test_a_gradient_that_one_process_lacks_counts_as_zero_there():
    """In a cold start too, whose batch may have fewer rows than there are processes."""
    assert several(2, gradients_added_up) == 2 * [[[2.0, 2.0], [2.0, 2.0], None]]


def test_a16_ranks_with_10_and_1000_tokens_equal_one_process():
    """A16: each rank holds one group; dividing by its own count would blow the short one up."""
    names = presets.names()
    alone = [step_taken(long_and_short(), name, 4096, Ranks()) for name in names]
    found, _ = several(2, lopsided, names)
    for step, wanted in zip(found, alone, strict=True):
        assert_same_step(step, wanted)


@pytest.mark.parametrize(("updates", "packs"), [(4, 2), (2, 4), (3, 8)])
def test_a14_the_gradient_has_one_scale_whatever_updates_and_packs(updates, packs):
    """A14: the count that divides is that of the step, not of a window of packs or updates."""
    groups = step_groups()
    wanted = step_taken(groups, "dapo", 10**6, Ranks())
    assert_same_step(step_taken(groups, "dapo", budget_for(groups, packs), Ranks(), updates), wanted)


def test_a26_every_pack_has_its_old_logprobs_before_the_first_update_is_taken():
    """A26: three updates on two packs: the ratio is 1 for every token before the first step and for none by right
    after it; old logprobs are a snapshot, whichever pack they belong to."""
    groups = step_groups()
    model = tiny_model("llama")
    prepare(model, announce=lambda line: None)
    objective = Objective(presets.get("dapo"))
    batch = make_batch(groups, objective, budget_for(groups, 2), "cpu")
    assert batch.pack_count == 2
    optimiser = Optimiser(dict(model.named_parameters()), OptimConfig(lr=1e-3))
    batch, first = update(model, batch, objective, Plain())
    kept = [part.old_E for part in batch.packs]
    assert all(old is not None for old in kept)
    assert first.metrics()["ratio"] == 1.0
    for _ in range(2):
        optimiser.step()
        batch, later = update(model, batch, objective, Plain())
        assert all(part.old_E is old for part, old in zip(batch.packs, kept, strict=True))
        assert abs(later.metrics()["kl_old"]) > 1e-6


# Whole runs


@pytest.fixture(scope="module")
def run_config(tmp_path_factory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("processes")
    return TrainConfig(
        model=ModelConfig(path=str(save_tiny_model(folder / "model"))),
        cold_start=ColdStartConfig(steps=1, batch_size=4),
        sample=SampleConfig(thoughts=2, answers=2, thought_tokens=6, answer_tokens=4, refill_rounds=2),
        credit=CreditConfig(preset="grpo-ma", beta=0.05, tis_cap=2.0),
        optim=OptimConfig(steps=2, prompts_per_step=4, updates_per_step=2, lr=1e-3, pack_tokens=64),
        evaluation=EvaluationConfig(prompts=5, samples=2),
        run=RunConfig(folder=str(folder / "run"), view="none", save_model=False),
    )


def assert_run_of_one(processes: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    first, *others = processes
    for other in others:  # metrics and weights are the same on every rank, bit for bit
        assert json.dumps(untimed(other["metrics"])) == json.dumps(untimed(first["metrics"]))
        assert all((other["weights"][n] == w).all() for n, w in first["weights"].items())
    ids = [[[s["ids"] for s in g["segments"]] for g in run["rollouts"] if g["step"] == 1] for run in (alone, first)]
    assert ids[0] == ids[1]
    for ours, theirs in zip(untimed(first["metrics"]), untimed(alone["metrics"]), strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs.keys() - {"kind", "packs"} if theirs["kind"] != "train" or theirs["step"] == 1 else ():
            assert ours[key] == pytest.approx(theirs[key], rel=1e-4, abs=1e-6, nan_ok=True), key
    for name, weight in alone["weights"].items():
        np.testing.assert_allclose(first["weights"][name], weight, rtol=0, atol=1e-5, err_msg=name)


def in_folder(config: TrainConfig, folder: Path, **run: Any) -> TrainConfig:
    return replace(config, run=replace(config.run, folder=str(folder), **run))


@pytest.fixture(scope="module")
def alone(run_config, tmp_path_factory) -> dict[str, Any]:
    return several(1, recorded_run, in_folder(run_config, tmp_path_factory.mktemp("one") / "run"))[0]


def test_the_runs_refill(alone):
    """So that the runs below show that dynamic sampling does not depend on the number of processes."""
    assert any(group.get("replaced") for group in alone["rollouts"])


@pytest.mark.parametrize("size", SIZES)
def test_a_run_of_several_processes_is_the_run_of_one(run_config, alone, tmp_path, size):
    assert_run_of_one(several(size, recorded_run, in_folder(run_config, tmp_path / "run")), alone)


def test_a_run_with_sharded_weights_is_the_run_of_one_and_goes_on_bit_for_bit(run_config, alone, tmp_path):
    """FSDP2 on two processes: gradients are summed, packs equal in number, checkpoints whole."""
    whole = several(2, sharded_run, in_folder(run_config, tmp_path / "whole"))
    assert_run_of_one(whole, alone)
    longer = in_folder(run_config, tmp_path / "cut", save_model=True)
    cut = replace(longer, optim=replace(longer.optim, steps=1))
    again = several(2, sharded_run, longer, cut)
    for name, weight in whole[0]["weights"].items():
        assert (again[0]["weights"][name] == weight).all(), name


def test_a_run_goes_on_with_sharded_weights_from_a_checkpoint_of_whole_ones(run_config, alone, tmp_path):
    longer = in_folder(run_config, tmp_path / "run", save_model=True)
    cut = replace(longer, optim=replace(longer.optim, steps=1))
    found, _ = several(2, sharded_run, longer, cut, False)
    for name, weight in alone["weights"].items():
        np.testing.assert_allclose(found["weights"][name], weight, rtol=0, atol=1e-5, err_msg=name)
