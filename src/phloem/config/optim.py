"""Updates: the supervised ones first, if any, then those of reinforcement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phloem.kinds import at_least, check_fields, positive, require

__all__ = ["ColdStartConfig", "OptimConfig"]


@dataclass(frozen=True)
class ColdStartConfig:
    """Supervised steps on the task's demonstrations before reinforcement; 0 steps: none."""

    steps: int = 0
    batch_size: int = 16
    lr: float = 3e-5

    def __post_init__(self) -> None:
        check_fields(self, "cold_start")
        at_least(self, "cold_start", steps=0, batch_size=1)
        positive(self, "cold_start", "lr")


@dataclass(frozen=True)
class OptimConfig:
    """Steps, batch and AdamW."""

    steps: int = 100
    prompts_per_step: int = 4
    updates_per_step: int = 1
    """Optimiser updates on each batch of rollouts; clipping only acts from the second on."""
    lr: float = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    """Steps over which the rate rises to `lr`; the first has lr / warmup_steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    pack_tokens: int = 2048
    """Tree tokens (prompts included) in one forward and backward; a larger tree runs depth first, in pieces of at most
    this size. Does not change the gradient."""

    def __post_init__(self) -> None:
        check_fields(self, "optim")
        at_least(self, "optim", steps=1, prompts_per_step=1, updates_per_step=1, pack_tokens=1)
        at_least(self, "optim", warmup_steps=0, weight_decay=0)
        positive(self, "optim", "lr", "max_grad_norm")
        require(all(0 <= beta < 1 for beta in self.betas), f"optim.betas is {list(self.betas)}; both must be in [0, 1)")
        require(
            self.warmup_steps < self.steps,
            f"optim.warmup_steps is {self.warmup_steps} and optim.steps {self.steps}: warm-up must end within the run",
        )
