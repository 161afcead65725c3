"""The two halves of a causal language model: the body that makes hidden states, and the head that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

__all__ = ["Head", "causal_lm", "split"]


@dataclass(frozen=True)
class Head:
    """logits = cap * tanh(module(hidden) * scale / cap), without the tanh where `cap` is None."""

    module: nn.Module
    scale: float = 1.0
    cap: float | None = None


def causal_lm(model: nn.Module) -> Any:
    """The transformers model inside `model`, without peft's or a parallel wrapper's shell (adapters stay in place)."""
    if isinstance(inner := getattr(model, "module", None), nn.Module):
        return causal_lm(inner)
    of_adapters = getattr(model, "get_base_model", None)
    return model if of_adapters is None else of_adapters()


def split(model: nn.Module) -> tuple[nn.Module, Head]:
    """The body and the head of a causal language model.

    Raises:
        ValueError: no body under the model's `base_model_prefix`, or no output embedding.
    """
    whole = causal_lm(model)
    body = getattr(whole, getattr(whole, "base_model_prefix", ""), None)
    module = whole.get_output_embeddings() if hasattr(whole, "get_output_embeddings") else None
    if not isinstance(body, nn.Module) or body is whole or module is None:
        raise ValueError(f"{type(whole).__name__} is no causal language model with a body and an output embedding")
    config = whole.config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return body, Head(module, scale, getattr(config, "final_logit_softcapping", None))
