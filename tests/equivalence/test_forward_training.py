"""The tree forward as training uses it: adapters, gradient checkpointing, autocast, and a real model."""

import numpy as np
import pytest
import torch
from groups import Shape, random_group
from peft import LoraConfig, get_peft_model
from tiny_models import float64_throughout, tiny_model
from torch import nn
from tree_against_rows import Outcome, assert_same_gradients, assert_same_values, by_rows, by_trees, random_weights

from phloem.config import ModelConfig
from phloem.forward import prepare
from phloem.models import load_model
from phloem.tree import Group, Segment

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("small_cuts_and_flex")]

ENGINES = ("dense", "paths", "flex")


def some_groups(seed: int = 0) -> list[Group]:
    draw = np.random.default_rng(seed)
    return [random_group(draw, Shape(levels=3, vocabulary=6, longest=5, prompt=3)) for _ in range(3)]


def with_lora(model: nn.Module, **settings: object) -> nn.Module:
    config = LoraConfig(**({"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | settings))
    adapted = get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return adapted


def checkpointed(model: nn.Module) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3"])
def test_gradient_checkpointing_changes_nothing(kind: str, engine: str) -> None:
    model = tiny_model(kind, torch.float64)
    prepare(model, engine, announce=lambda line: None)
    groups = some_groups()
    weights = random_weights(groups)
    with float64_throughout():
        wanted = by_rows(model, groups, weights)
        checkpointed(model)
        found = by_trees(model, groups, weights, budget=40)
    assert_same_values(found, wanted, 1e-12)
    assert_same_gradients(found, wanted, 1e-12, 1e-11)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{}, {"use_dora": True}, {"target_modules": ["q_proj", "lm_head"]}, {"modules_to_save": ["lm_head"]}],
    ids=["lora", "dora", "lora on the head", "head trained whole"],
)
def test_adapters(settings: dict[str, object], checkpointing: bool) -> None:
    model = with_lora(tiny_model("llama", torch.float64), **settings).double()
    prepare(model, "paths")
    groups = some_groups(1)
    weights = random_weights(groups)
    with float64_throughout():
        wanted = by_rows(model, groups, weights)
        if checkpointing:
            model.enable_input_require_grads()
            checkpointed(model)
        found = by_trees(model, groups, weights)
    assert len(found.gradients) > 0
    assert_same_values(found, wanted, 1e-12)
    assert_same_gradients(found, wanted, 1e-12, 1e-11)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_with_adapters_and_checkpointing(engine: str) -> None:
    model = with_lora(tiny_model("gemma3", torch.float64)).double()
    prepare(model, engine, announce=lambda line: None)
    groups = some_groups(3)
    weights = random_weights(groups)
    with float64_throughout():
        wanted = by_rows(model, groups, weights)
        model.enable_input_require_grads()
        checkpointed(model)
        found = by_trees(model, groups, weights)
    assert_same_values(found, wanted, 1e-12)
    assert_same_gradients(found, wanted, 1e-12, 1e-11)


def distance(found: Outcome, wanted: Outcome) -> tuple[float, float]:
    """Root mean square of the values' differences, and the norm of the gradients'."""
    values = (found.values - wanted.values).square().mean().sqrt().item()
    off = [(found.gradients[name] - gradient).norm() for name, gradient in wanted.gradients.items()]
    return values, torch.stack(off).norm().item()


@pytest.mark.parametrize("engine", ENGINES)
def test_bfloat16_autocast_is_as_near_as_rows_in_bfloat16(engine: str) -> None:
    """Both round; neither is further from float32 than the other."""
    model = tiny_model("llama")
    prepare(model, engine)
    groups = some_groups(2)
    weights = random_weights(groups)
    exact = by_rows(model, groups, weights)
    with torch.autocast("cpu", torch.bfloat16):
        rows, trees = by_rows(model, groups, weights), by_trees(model, groups, weights)
    off_rows, off_trees = distance(rows, exact), distance(trees, exact)
    assert 1e-4 < off_rows[0] < 0.2
    assert off_trees[0] < 1.25 * off_rows[0]
    assert off_trees[1] < 1.25 * off_rows[1]


@pytest.mark.smollm2
def test_smollm2() -> None:
    model, _ = load_model(ModelConfig())
    prepare(model, "paths")
    draw = np.random.default_rng(0)
    thoughts = [Segment(draw.integers(0, 49152, n)) for n in (6, 9)]
    answers = [Segment(draw.integers(0, 49152, n), parent=n % 2) for n in (2, 3, 5)]
    groups = [Group(draw.integers(0, 49152, 12), (*thoughts, *answers))]
    weights = [[w * [[1], [0]] for w in weights_R] for weights_R in random_weights(groups)]  # without entropy
    wanted, found = by_rows(model, groups, weights), by_trees(model, groups, weights, chunk=256)
    assert_same_values(found, wanted, 1e-5)
    assert_same_gradients(found, wanted, 1e-5, 5e-5)
