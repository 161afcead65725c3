"""What a step needs: a reference that is the policy as it was, and logprobs for every sampled token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import peft
import pytest
import torch
from groups import Shape, random_group
from tiny_models import tiny_model, update
from torch import nn
from update_machine import Plain

from phloem import presets
from phloem.forward import logprobs, prepare
from phloem.kinds import PhloemError
from phloem.train.step import Objective, Reference, make_batch
from phloem.tree import Group

pytestmark = pytest.mark.model

OBJECTIVE = Objective(presets.get("grpo", beta=0.1), temperature=0.9)


def policy(adapted: bool) -> nn.Module:
    """A model that has already been trained: its adapters are not the zeros they start from."""
    model: nn.Module = tiny_model("llama")
    if adapted:
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=4, lora_dropout=0.5, target_modules="all-linear", task_type="CAUSAL_LM")
        )
        update(model, 0.1, seed=1)
    prepare(model, announce=lambda line: None)
    return model.train()


@pytest.mark.parametrize("adapted", [False, True])
def test_the_reference_is_the_policy_when_it_was_made(adapted):
    model = policy(adapted)
    rng = np.random.default_rng(0)
    groups = [random_group(rng, Shape(levels=2)) for _ in range(3)]
    batch = make_batch(groups, OBJECTIVE, 64, "cpu")
    reference = Reference(model)
    with torch.no_grad():
        wanted = [logprobs(model.eval(), part.pack, OBJECTIVE.temperature).logprobs_E for part in batch.packs]
    update(model.train(), 0.1, seed=1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    filled = reference.fill(model, replace(batch), OBJECTIVE, Plain())
    for part, expected in zip(filled.packs, wanted, strict=True):
        assert part.ref_E is not None
        torch.testing.assert_close(part.ref_E, expected, rtol=0, atol=0)
    assert model.training
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name], rtol=0, atol=0)
    with torch.no_grad():
        now = logprobs(model.eval(), batch.packs[0].pack, OBJECTIVE.temperature).logprobs_E
    assert (now - wanted[0]).abs().max() > 1e-3


def test_a_segment_without_logprobs_is_an_error():
    """A31: what the sampler did not report is never taken for 0."""
    group = Group.from_rollouts([1], [[2, 3], [4]], [1.0, 0.0])
    with pytest.raises(PhloemError, match="gave a segment no logprobs"):
        make_batch([group], OBJECTIVE, 64, "cpu")
