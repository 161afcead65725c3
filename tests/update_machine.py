"""What an update and a depth-first walk need of a run's policy, and no more."""

from __future__ import annotations

import torch


class Plain:
    """One process and no casts, or products in bfloat16 if asked for."""

    def __init__(self, autocast: bool = False) -> None:
        self.casts = autocast

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.casts)
