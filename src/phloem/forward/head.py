"""Log-probabilities of chosen tokens from hidden states, without the logits of all positions at once.

Memory is bounded by chunk x V elements and a constant, whatever the number of positions: logits are made a part at a
time, and again in the backward. A position may have several targets (the children of a fork): its logits are made
once. A plain linear head runs in tiles of positions x vocabulary (`linear_head.py`), any other in chunks of positions.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import nn
from torch.utils.checkpoint import checkpoint

from phloem.forward.linear_head import Settings, Targets, linear_logprobs
from phloem.forward.split import Head

__all__ = ["CHUNK", "Targets", "head_logprobs"]

# Logits held at once, in positions: 3 million elements at a vocabulary of 50 thousand, which stay in a CPU's cache.
CHUNK = 64
# Logits up to this many elements are kept for the backward instead of made again: at most 256 MiB in float32.
KEEP = 2**26


def head_logprobs(
    hidden_P: Float[torch.Tensor, "P d"], head: Head, targets: Targets, temperature: float, chunk: int = CHUNK
) -> tuple[Float[torch.Tensor, " E"], Float[torch.Tensor, " P"]]:
    """log softmax(logits / temperature) of the targets, and the entropy of every position's distribution, in nats.

    Matrix products run in the dtype that autocast asks for, the softmax at least in float32.
    """
    module = head.module
    if type(module) is nn.Linear and head.cap is None:
        dtype = hidden_P.dtype
        if torch.is_autocast_enabled(hidden_P.device.type):
            dtype = torch.get_autocast_dtype(hidden_P.device.type)
        keep = KEEP if torch.is_grad_enabled() else 0
        settings = Settings(head.scale / temperature, dtype, chunk * len(module.weight), keep)
        return linear_logprobs(hidden_P, module.weight, module.bias, targets, settings)

    def of_chunk(hidden: torch.Tensor, ids: torch.Tensor, slot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = _at_least_float32(module(hidden)) * head.scale
        if head.cap is not None:
            logits = head.cap * torch.tanh(logits / head.cap)
        log_p = torch.log_softmax(logits / temperature, dim=-1)
        return log_p[slot, ids], -(log_p.exp() * log_p).sum(-1)

    parts = [
        checkpoint(of_chunk, hidden_P[a:b], targets.ids_E[c:d], targets.slot_E[c:d] - a, use_reentrant=False)
        for a, b, c, d in _edges(len(hidden_P), targets.slot_E, chunk)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _edges(positions: int, slot_E: torch.Tensor, chunk: int) -> list[tuple[int, int, int, int]]:
    """For each chunk a:b of positions, its targets c:d."""
    starts = torch.arange(0, positions + chunk, chunk).clamp(max=positions).unique()
    first = torch.searchsorted(slot_E.cpu(), starts)
    edges = torch.stack([starts, first]).tolist()
    return [(a, b, c, d) for a, b, c, d in zip(edges[0], edges[0][1:], edges[1], edges[1][1:], strict=False)]


def _at_least_float32(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()
