"""Tiny random models of each served type, and the patches that make their float64 forward float64 throughout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from tiny_tokenizers import QWEN, byte_level
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 61
KINDS = ("llama", "llama-tied", "llama-bias", "mistral-window", "qwen2", "qwen2-window", "qwen3", "gpt2", "gemma3")

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.2,
}


def tiny_model(kind: str, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A model of two layers with random weights, large enough for attention to matter; `overrides` go to the config."""
    torch.manual_seed(seed)
    model = _build(kind, overrides)
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_" in name or name.endswith("bias"):
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype)


def save_tiny_model(folder: Path, tokenizer: Any = None, kind: str = "llama", **overrides: Any) -> Path:
    """Writes a tiny model and its tokenizer (of bytes, if none is given) as a run loads them; returns the folder."""
    tokenizer = byte_level(QWEN) if tokenizer is None else tokenizer
    tiny_model(kind, vocab_size=len(tokenizer), **overrides).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def adapted_model(kind: str = "llama", model: Any = None, **settings: Any) -> Any:
    """A tiny model with LoRA adapters that are not zero; `settings` go to peft's config."""
    torch.manual_seed(0)
    targets: dict[str, Any] = {"target_modules": "all-linear", "r": 3, "lora_alpha": 8, "task_type": "CAUSAL_LM"}
    adapted = peft.get_peft_model(model or tiny_model(kind), peft.LoraConfig(**(targets | settings)))
    update(adapted, 0.1, seed=None)
    return adapted


def update(model: torch.nn.Module, by: float = 1e-3, seed: int | None = 0) -> None:
    """Moves what is trained at random, the same way for the same seed; None goes on with the numbers of torch."""
    if seed is not None:
        torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(by * torch.randn_like(p))


def _build(kind: str, overrides: dict[str, Any]) -> PreTrainedModel:
    shape = _SHAPE | overrides
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape))
    if kind == "llama-tied":
        return LlamaForCausalLM(LlamaConfig(**(shape | {"tie_word_embeddings": True})))
    if kind == "llama-bias":
        return LlamaForCausalLM(LlamaConfig(**shape, attention_bias=True, mlp_bias=True))
    if kind == "mistral-window":
        return MistralForCausalLM(MistralConfig(**({"sliding_window": 5} | shape)))
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**shape))
    if kind == "qwen2-window":
        return Qwen2ForCausalLM(Qwen2Config(**shape, use_sliding_window=True, sliding_window=6, max_window_layers=1))
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**({"head_dim": 16} | shape)))
    if kind == "gpt2":
        names = {
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "intermediate_size": "n_inner",
        }
        renamed = {names.get(key, key): value for key, value in shape.items() if key != "num_key_value_heads"}
        return GPT2LMHeadModel(GPT2Config(**(renamed | {"tie_word_embeddings": True} | overrides)))
    if kind == "gemma3":
        layers = ["sliding_attention", "full_attention"]
        own = {"head_dim": 16, "sliding_window": 4, "layer_types": layers, "query_pre_attn_scalar": 16}
        return Gemma3ForCausalLM(Gemma3TextConfig(**(own | shape)))
    raise ValueError(f"no tiny model of kind {kind!r}")


@contextmanager
def float64_throughout() -> Iterator[None]:
    """Inside, the float32 up-casts of models (norms, rotary tables, eager softmax) are float64.

    A model casts by `x.float()`, `x.to(torch.float32)` or `softmax(..., dtype=torch.float32)`; on a float64 tensor
    that narrows, and limits agreement to 1e-7 whatever the weights.
    """
    tensor_float, tensor_to, softmax = torch.Tensor.float, torch.Tensor.to, torch.nn.functional.softmax

    def widened(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.is_floating_point() or kwargs.get("dtype") is torch.float32 or torch.float32 in args:
            args = tuple(widened(a) for a in args)
            kwargs = {key: widened(value) for key, value in kwargs.items()}
        return tensor_to(self, *args, **kwargs)

    def wide_softmax(input: torch.Tensor, dim: int | None = None, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        return softmax(input, dim=dim, dtype=widened(dtype), **kwargs)

    torch.Tensor.float = lambda self, *a, **k: tensor_to(self, torch.float64)  # type: ignore[method-assign]
    torch.Tensor.to = to  # type: ignore[method-assign]
    torch.nn.functional.softmax = wide_softmax
    try:
        yield
    finally:
        torch.Tensor.float, torch.Tensor.to = tensor_float, tensor_to  # type: ignore[method-assign]
        torch.nn.functional.softmax = softmax
