"""AdamW with its schedule and its state by the names of the parameters, so that a checkpoint outlives their order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from phloem.config import OptimConfig
from phloem.train.ranks import Ranks
from phloem.train.schedule import rate_factor
from phloem.train.sharded import like, whole

__all__ = ["Optimiser"]


class Optimiser:
    """Updates the trained parameters of a model.

    Attributes:
        updates: planned updates so far: the position in the schedule.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], config: OptimConfig) -> None:
        self.config = config
        self.updates = 0
        self._named = dict(named)
        self._adamw = torch.optim.AdamW(
            list(self._named.values()), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
        )

    @property
    def rate(self) -> float:
        """The learning rate of the next update."""
        return self.config.lr * rate_factor(self.updates, self.config)

    def add_up(self, ranks: Ranks) -> None:
        """Adds the gradients of all processes."""
        if not ranks.sharded:  # FSDP2 adds them up in the backward
            ranks.add_up_gradients(list(self._named.values()))

    def step(self) -> None:
        """One update by the gradients, which are then gone."""
        for group in self._adamw.param_groups:
            group["lr"] = self.rate
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self.updates += 1

    def skip(self, updates: int) -> None:
        """The schedule counts planned updates, so that a step with nothing to train does not stretch it."""
        self.updates += updates

    def clip_gradient(self) -> float:
        """Clips the gradient to `optim.max_grad_norm` and returns its norm before that."""
        bound = self.config.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self._named.values(), float("inf") if bound is None else bound)
        return float(whole(norm))

    def state(self) -> dict[str, Tensor]:
        """AdamW's moments and counts as `NAME:exp_avg` and so on, whole; empty before the first update.

        To be called by all processes.
        """
        return {
            f"{name}:{key}": whole(value.detach()).cpu().contiguous()
            for name, parameter in self._named.items()
            for key, value in self._adamw.state.get(parameter, {}).items()
        }

    def restore(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Goes on from what `state` returned after so many planned updates."""
        self.updates = updates
        for key, value in state.items():
            name, _, kind = key.rpartition(":")
            parameter = self._named[name]
            self._adamw.state[parameter][kind] = value if kind == "step" else like(value, parameter)
