"""The depth-first engine against each rollout alone: values and gradients, whatever the size of the pieces."""

import numpy as np
import pytest
import torch
from groups import Shape, random_group
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tiny_models import KINDS, float64_throughout, tiny_model
from torch import nn
from tree_against_rows import (
    Outcome,
    Weights,
    assert_same_gradients,
    assert_same_values,
    by_rows,
    gradients,
    on_tree,
    random_weights,
)
from update_machine import Plain

from phloem.forward import CannotServe, Logprobs, logprobs, pack, prepare
from phloem.forward.dfs import bounded_backward, bounded_logprobs
from phloem.tree import Group, PrefixTree

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("small_cuts_and_flex")]


def by_pieces(
    model: nn.Module, group: Group, weights: Weights, budget: int, temperature: float = 1.0, autocast: bool = False
) -> Outcome:
    """The weighted sum of `tree_against_rows`, depth first."""
    model.zero_grad()
    machine = Plain(autocast)
    tree = PrefixTree.from_group(group)
    packed = pack([tree])
    weights_E = torch.from_numpy(on_tree(tree, weights[0]))[:, packed.trained_E]
    asked: list[torch.Tensor] = []

    def loss(index_E: torch.Tensor, found: Logprobs) -> torch.Tensor:
        asked.append(index_E)
        both = torch.stack([found.logprobs_E, found.entropy_E])
        return (both * weights_E[:, index_E].to(both)).sum()

    found = bounded_backward(model, packed, budget, loss, machine, temperature)
    assert torch.equal(torch.cat(asked).sort().values, torch.arange(len(packed.trained_E)))
    with machine.autocast():
        again = bounded_logprobs(model, packed, budget, temperature)
    both_T = found.logprobs_E.new_full((2, len(tree)), torch.nan)
    both_T[:, packed.trained_E] = torch.stack([found.logprobs_E, found.entropy_E])
    if not any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()):
        torch.testing.assert_close(again.logprobs_E, found.logprobs_E)
    return Outcome(both_T[:, tree.row_index[tree.row_sampled]], gradients(model))


def a_group(seed: int, levels: int = 4) -> Group:
    draw = np.random.default_rng(seed)
    while True:
        group = random_group(draw, Shape(levels=levels, vocabulary=5, longest=5, forced=True, prompt=4))
        if 3 <= group.group_size <= 20 and PrefixTree.from_group(group).U > 3:
            return group


def compare(model: nn.Module, group: Group, budget: int, temperature: float = 1.0, tolerance: float = 1e-12) -> None:
    weights = random_weights([group])
    wanted = by_rows(model, [group], weights, temperature)
    found = by_pieces(model, group, weights, budget, temperature)
    assert_same_values(found, wanted, tolerance)
    assert_same_gradients(found, wanted, tolerance, 10 * tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_float64_equals_rows_to_rounding(kind: str) -> None:
    model = tiny_model(kind, torch.float64)
    prepare(model, "paths", announce=lambda line: None)
    with float64_throughout():
        for seed, budget in ((1, 7), (2, 16)):
            compare(model, a_group(seed), budget, 0.7)


@pytest.mark.parametrize("engine", ["dense", "flex"])
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_every_back_end_runs_pieces(kind: str, engine: str) -> None:
    model = tiny_model(kind, torch.float64)
    prepare(model, engine, announce=lambda line: None)
    with float64_throughout():
        compare(model, a_group(3), 9)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_float32_gradients_equal_rows(kind: str) -> None:
    model = tiny_model(kind)
    prepare(model, "paths", announce=lambda line: None)
    weights = random_weights([a_group(4)])
    wanted, found = by_rows(model, [a_group(4)], weights), by_pieces(model, a_group(4), weights, 6)
    assert_same_values(found, wanted, 1e-5)
    assert_same_gradients(found, wanted, 1e-5, 5e-5)


@pytest.fixture(scope="module")
def prepared() -> nn.Module:
    model = tiny_model("gemma3", torch.float64)
    prepare(model, "paths", announce=lambda line: None)
    return model


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1), levels=st.integers(1, 5), budget=st.integers(1, 40))
def test_random_trees(prepared: nn.Module, seed: int, levels: int, budget: int) -> None:
    with float64_throughout():
        compare(prepared, a_group(seed, levels), budget, tolerance=1e-11)


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_gradient_checkpointing_and_adapters(kind: str, adapted: bool) -> None:
    model: nn.Module = tiny_model(kind, torch.float64)
    if adapted:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")).double()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1)
        model.enable_input_require_grads()
    prepare(model, "paths", announce=lambda line: None)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    with float64_throughout():
        compare(model, a_group(5), 8)


def test_reentrant_checkpointing_is_refused() -> None:
    model = tiny_model("llama")
    prepare(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    model.train()
    with pytest.raises(CannotServe, match="use_reentrant=False"):
        by_pieces(model, a_group(5), random_weights([a_group(5)]), 8)


def test_a_piece_draws_the_same_dropout_both_times() -> None:
    """With other masks in the second run, keys and their gradients would belong to different policies."""
    lora = LoraConfig(r=4, lora_dropout=0.5, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(tiny_model("llama", torch.float64), lora).double().train()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    prepare(model, "paths", announce=lambda line: None)
    tree = PrefixTree.from_rollouts([1, 2, 3, 4], [[5, 6, 7, 8, 9, 10, 11, 12]])
    packed = pack([tree])

    def total(index_E: torch.Tensor, found: Logprobs) -> torch.Tensor:
        return found.logprobs_E.sum()

    name = "base_model.model.model.layers.0.self_attn.k_proj.lora_B.default.weight"
    trained = model.get_parameter(name)
    direction = torch.randn_like(trained)

    def at(shift: float) -> float:
        torch.manual_seed(0)
        with torch.no_grad():
            trained.add_(shift * direction)
        value = float(bounded_backward(model, packed, 4, total, Plain()).logprobs_E.sum())
        with torch.no_grad():
            trained.sub_(shift * direction)
        return value

    with float64_throughout():
        model.zero_grad()
        at(0.0)
        assert trained.grad is not None
        slope = float((trained.grad * direction).sum())
        assert slope == pytest.approx((at(1e-4) - at(-1e-4)) / 2e-4, rel=1e-6)


def test_bfloat16_is_as_near_as_rows_in_bfloat16() -> None:
    """Over several trees: of a single one either may be twice as far from float32 as the other."""
    model = tiny_model("llama")
    prepare(model, "paths")
    values, slopes = np.zeros(2), np.zeros(2)
    for seed in range(8):
        group = a_group(seed)
        weights = random_weights([group])
        exact = by_rows(model, [group], weights)
        with torch.autocast("cpu", torch.bfloat16):
            rows = by_rows(model, [group], weights)
        both = (rows, by_pieces(model, group, weights, 8, autocast=True))
        values += [(o.values - exact.values).square().mean().item() for o in both]
        slopes += [sum((o.gradients[n] - g).square().sum().item() for n, g in exact.gradients.items()) for o in both]
    off_rows, off_pieces = np.sqrt(values / 8)
    assert 1e-4 < off_rows < 0.2
    assert off_pieces < 1.15 * off_rows
    assert slopes[1] < 1.15**2 * slopes[0]


def test_a_pack_of_several_trees_is_refused() -> None:
    model = tiny_model("llama")
    prepare(model)
    trees = [PrefixTree.from_group(a_group(seed)) for seed in (0, 1)]
    with pytest.raises(ValueError, match="a pack of one tree, not of 2"):
        bounded_logprobs(model, pack(trees), 8)
    one = pack(trees[:1])
    with torch.no_grad():
        wanted = logprobs(model, one)
    torch.testing.assert_close(bounded_logprobs(model, one, 8).logprobs_E, wanted.logprobs_E)
