"""Preparing a model: dropout off and announced, what cannot be served refused by name, the numeric check."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from tiny_models import VOCABULARY, tiny_model
from torch import nn
from transformers import AutoModelForCausalLM

from phloem.forward import CannotServe, Logprobs, logprobs, logprobs_of_rows, pack, prepare
from phloem.tree import Group, PrefixTree, Segment

pytestmark = pytest.mark.model

TREE = PrefixTree.from_rollouts([1, 2, 3], [[4, 5, 6], [4, 5, 7], [8]])
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": None,
}


def test_dropout_is_set_to_0_with_a_line() -> None:
    lines: list[str] = []
    model = tiny_model("gpt2").train()
    prepare(model, announce=lines.append)
    assert lines == ["dropout set to 0: attn_pdrop 0.1, embd_pdrop 0.1, resid_pdrop 0.1"]
    assert all(module.p == 0 for module in model.modules() if isinstance(module, nn.Dropout))
    assert model.training
    once, again = (logprobs(model, pack([TREE])).logprobs_E for _ in range(2))
    assert torch.equal(once, again)


def test_dropout_of_attention_weights_is_set_to_0() -> None:
    lines: list[str] = []
    model = tiny_model("llama", attention_dropout=0.25).train()
    prepare(model, announce=lines.append)
    assert lines == ["dropout set to 0: attention_dropout 0.25"]
    once, again = (logprobs(model, pack([TREE])).logprobs_E for _ in range(2))
    assert torch.equal(once, again)


def test_lora_dropout_is_kept_and_announced() -> None:
    lines: list[str] = []
    lora = LoraConfig(r=4, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(tiny_model("llama"), lora).train()
    prepare(model, announce=lines.append)
    assert lines == ["LoRA dropout 0.1 is kept: one mask per distinct token, the same for all rollouts through it"]
    assert any(module.p == 0.1 for module in model.modules() if isinstance(module, nn.Dropout))


def test_a_quiet_model_is_announced_by_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(tiny_model("llama"), "dense") == "dense"
    assert capsys.readouterr().out == ""


def test_the_engine_is_chosen_once() -> None:
    model = tiny_model("llama")
    assert prepare(model) == "paths"
    assert prepare(model) == "paths"
    assert prepare(model, "paths") == "paths"
    with pytest.raises(ValueError, match="runs on paths and keeps it"):
        prepare(model, "dense")
    with pytest.raises(ValueError, match="must be auto, dense, paths or flex"):
        prepare(tiny_model("llama"), "path")  # type: ignore[arg-type]


def test_flex_is_refused_where_it_has_no_backward() -> None:
    model = tiny_model("llama")
    with pytest.raises(CannotServe, match=r"no backward on cpu: set model\.attention to paths"):
        prepare(model, "flex")
    assert model.config._attn_implementation == "sdpa"


def _config(model_type: str, **settings: Any) -> Any:
    return transformers.AutoConfig.for_model(model_type, **(SMALL | settings))


REFUSALS = {
    "attention soft caps": ("gemma2", {"attn_logit_softcapping": 50.0}),
    "linear attention or state space": ("mamba", {}),
    "layers of type linear_attention": (
        "qwen3_next",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 2,
            "num_experts_per_tok": 1,
        },
    ),
    "state from token to token": (
        "jamba",
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "use_mamba_kernels": False,
        },
    ),
    "attention sinks": ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16}),
    "attention interface": ("bloom", {"n_head": 2}),
    "an encoder and a decoder": ("bart", {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1}),
    "rope type dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    "chunked attention": (
        "llama4_text",
        {"attention_chunk_size": 16, "num_local_experts": 2, "intermediate_size_mlp": 32, "num_experts_per_tok": 1},
    ),
    "not causal": ("gemma3_text", {"use_bidirectional_attention": True, "sliding_window": 8}),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_cannot_be_served_is_refused_by_name(reason: str) -> None:
    model_type, settings = REFUSALS[reason]
    config = _config(model_type, **settings)
    if config.is_encoder_decoder:
        model = transformers.BartForConditionalGeneration(config)
    else:
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(CannotServe, match=reason):
        prepare(model)


SERVED = {
    "cohere": {"logit_scale": 0.3},
    "granite": {"logits_scaling": 3.0, "embedding_multiplier": 2.0},
    "gemma2": {"attn_logit_softcapping": None, "final_logit_softcapping": 2.0, "sliding_window": 400},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "phi3": {},
    "olmo2": {},
    "gpt_neox": {},
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 48},
}


@pytest.mark.parametrize("model_type", SERVED)
def test_scaled_and_capped_logits_and_experts_pass_the_check(model_type: str) -> None:
    torch.manual_seed(0)
    config = _config(model_type, initializer_range=0.2, bos_token_id=None, eos_token_id=None, **SERVED[model_type])
    model = AutoModelForCausalLM.from_config(config)
    prepare(model, announce=lambda line: None)
    assert logprobs(model, pack([TREE])).logprobs_E.std() > 0.1


def test_a_mask_of_the_models_own_making_is_refused() -> None:
    model = tiny_model("llama")
    attention = model.model.layers[1].self_attn
    whole = attention.forward

    def biased(*args: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> Any:
        if attention_mask is not None:
            attention_mask = torch.zeros(1, 4, 1, kwargs["hidden_states"].shape[1])
        return whole(*args, attention_mask=attention_mask, **kwargs)

    attention.forward = biased
    with pytest.raises(CannotServe, match="an attention mask of its own making"):
        prepare(model)


def test_learned_prompts_are_refused() -> None:
    from peft import PromptTuningConfig

    model = get_peft_model(tiny_model("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(CannotServe, match="learned prompts"):
        prepare(model)


class _Mixer(nn.Module):
    """Adds to each token the one before it in memory: on a tree that is not the one before it in the row."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + torch.roll(x, 1, dims=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_check_stops_on_a_model_that_mixes_tokens_by_other_means(dtype: torch.dtype) -> None:
    model = tiny_model("llama", dtype)
    model.model.layers[0].mlp = _Mixer(model.model.layers[0].mlp)
    with pytest.raises(CannotServe, match=r"on a tree( in pieces)? differs by .* mixes tokens"):
        prepare(model)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match=r"call forward\.prepare"):
        logprobs(model, pack([TREE]))


def test_weights_that_give_no_numbers_are_refused_as_such() -> None:
    model = tiny_model("llama")
    model.lm_head.weight.data[3] = float("nan")
    with pytest.raises(CannotServe, match=r"give logits that are not finite numbers: .* set model\.dtype to float32"):
        prepare(model)
    assert model.config._attn_implementation == "sdpa"


def test_the_check_stops_on_a_model_that_drops_the_pack() -> None:
    model = tiny_model("llama")
    attention = model.model.layers[1].self_attn
    whole = attention.forward
    attention.forward = lambda *args, phloem_pack=None, **kwargs: whole(*args, **kwargs)
    with pytest.raises(CannotServe, match="not handed the pack"):
        prepare(model)


def test_the_check_stops_on_layers_that_do_not_pass_their_window_on() -> None:
    model = tiny_model("gemma3", sliding_window=400)
    model.model.layers[0].self_attn.sliding_window = None
    with pytest.raises(CannotServe, match=r"declares sliding windows .*400.* layers use {None}"):
        prepare(model)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2"])
def test_without_a_pack_a_prepared_model_samples_as_before(kind: str) -> None:
    prompt = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    settings = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    plain = tiny_model(kind).eval().generate(prompt, **settings)
    model = tiny_model(kind)
    prepare(model, announce=lambda line: None)
    assert torch.equal(model.eval().generate(prompt, **settings), plain)


def test_a_prepared_model_can_be_saved_and_loaded(tmp_path: Any) -> None:
    model = tiny_model("llama")
    prepare(model)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sdpa"
    group = Group(np.array([1, 2]), (Segment(np.array([3, 4])),))
    with torch.no_grad():
        wanted, found = logprobs_of_rows(model, group)[0], logprobs_of_rows(loaded, group)[0]
    torch.testing.assert_close(found.logprobs_L, wanted.logprobs_L)


def test_arguments_of_logprobs_are_checked() -> None:
    model = tiny_model("gpt2", max_position_embeddings=40)
    prepare(model, announce=lambda line: None)
    with pytest.raises(ValueError, match="temperature is 0"):
        logprobs(model, pack([TREE]), temperature=0.0)
    with pytest.raises(ValueError, match="no token of the pack was sampled"):
        logprobs(model, pack([PrefixTree.from_rollouts([1, 2], [[]])]))
    with pytest.raises(ValueError, match=r"41 tokens .* 40 positions"):
        logprobs(model, pack([PrefixTree.from_rollouts([1], [list(range(40))])]))
    assert isinstance(logprobs(model, pack([PrefixTree.from_rollouts([1], [list(range(39))])])), Logprobs)
