"""The oracle: each rollout alone, unpadded, through the model's own forward.

Short, slow and free of everything the tree forward relies on. What it needs of memory is the logits of one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from phloem.tree.rollout import Group

__all__ = ["Row", "logprobs_of_rows"]


@dataclass(frozen=True, eq=False)
class Row:
    """Of one rollout's completion tokens, forced ones included.

    Attributes:
        logprobs_L: log-probability of each token, in nats.
        entropy_L: entropy of the distribution that predicts it, in nats.
    """

    logprobs_L: Float[torch.Tensor, " L"]
    entropy_L: Float[torch.Tensor, " L"]


def logprobs_of_rows(model: nn.Module, group: Group, temperature: float = 1.0) -> list[Row]:
    """One `Row` for each rollout of the group, in order, from one plain forward each."""
    return [_of_row(model, group.prompt, group.completion(r), temperature) for r in range(group.group_size)]


def _of_row(model: nn.Module, prompt: np.ndarray, completion: np.ndarray, temperature: float) -> Row:
    ids_L = torch.from_numpy(np.concatenate([prompt, completion])).to(next(model.parameters()).device)
    logits = model(input_ids=ids_L[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
    wide = logits if logits.dtype == torch.float64 else logits.float()
    log_p = torch.log_softmax(wide / temperature, dim=-1)
    own = log_p.gather(1, ids_L[len(prompt) :, None])[:, 0]
    return Row(own, -(log_p.exp() * log_p).sum(-1))
