"""What is pushed to an engine is what the merged model would be saved as."""

from __future__ import annotations

import copy

import peft
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import KINDS, adapted_model, tiny_model

from phloem.sample import SampleError
from phloem.sample.checkpoint import checkpoint_tensors

pytestmark = pytest.mark.model


def saved(model, folder) -> dict[str, torch.Tensor]:
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float = 0) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[k].float(), other[k].float(), rtol=0, atol=tolerance) for k in one
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_model(kind, tmp_path):
    model = tiny_model(kind)
    pushed = dict(checkpoint_tensors(model))
    assert same(pushed, saved(model, tmp_path))
    assert {t.data_ptr() for t in pushed.values()} <= {p.data_ptr() for p in model.parameters()}, "no copies"


@pytest.mark.parametrize("kind", ["llama", "llama-bias", "gpt2"])
@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"use_rslora": True}], ids=["lora", "dora", "rslora"])
def test_adapters_are_merged_and_the_policy_is_left_alone(kind, settings, tmp_path):
    model = adapted_model(kind, **settings)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    pushed = dict(checkpoint_tensors(model))
    assert same(model.state_dict(), before)
    merged = copy.deepcopy(model).merge_and_unload()
    assert same(pushed, saved(merged, tmp_path), 1e-6)
    assert not same(pushed, dict(checkpoint_tensors(tiny_model(kind)))), "the adapters make a difference"


def test_fully_trained_modules_beside_adapters_are_pushed_too(tmp_path):
    model = adapted_model(modules_to_save=["lm_head"])
    merged = copy.deepcopy(model).merge_and_unload()
    assert same(dict(checkpoint_tensors(model)), saved(merged, tmp_path), 1e-6)


def test_a_bfloat16_base_is_merged_in_float32():
    model = adapted_model().bfloat16()
    name = "model.layers.0.self_attn.q_proj"
    layer = model.get_base_model().get_submodule(name)
    exact = layer.base_layer.weight.float() + copy.deepcopy(layer).float().get_delta_weight("default")
    assert torch.equal(dict(checkpoint_tensors(model))[f"{name}.weight"], exact)


def test_what_cannot_be_merged_is_refused_by_name():
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(SampleError, match=r"cannot be merged.*sample\.engine hf"):
        dict(checkpoint_tensors(peft.get_peft_model(tiny_model("llama"), settings)))
