"""Log-probabilities of chosen tokens from hidden states, without the logits of all positions at once.

The head is applied to `chunk` positions at a time, and again in the backward, so that memory is bounded by chunk x V
whatever the number of positions. A position may have several targets (the children of a fork): its logits are made
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from phloem.forward.split import Head

__all__ = ["Targets", "head_logprobs"]


@dataclass(frozen=True, eq=False)
class Targets:
    """Which tokens are asked for: `ids_E`, each predicted at position `slot_E` (ascending) of the hidden states."""

    ids_E: Int64[torch.Tensor, " E"]
    slot_E: Int64[torch.Tensor, " E"]


def head_logprobs(
    hidden_P: Float[torch.Tensor, "P d"], head: Head, targets: Targets, temperature: float, chunk: int
) -> tuple[Float[torch.Tensor, " E"], Float[torch.Tensor, " P"]]:
    """log softmax(logits / temperature) of the targets, and the entropy of every position's distribution, in nats.

    Matrix products run in the dtype that autocast asks for, the softmax at least in float32.
    """
    edges = _edges(len(hidden_P), targets.slot_E, chunk)
    module = head.module
    if type(module) is nn.Linear and head.cap is None:
        dtype = hidden_P.dtype
        if torch.is_autocast_enabled(hidden_P.device.type):
            dtype = torch.get_autocast_dtype(hidden_P.device.type)
        settings = _Settings(targets, edges, head.scale / temperature, dtype)
        return _LinearLogprobs.apply(hidden_P, module.weight, module.bias, settings)  # type: ignore[no-any-return]

    def of_chunk(hidden: torch.Tensor, ids: torch.Tensor, slot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = _at_least_float32(module(hidden)) * head.scale
        if head.cap is not None:
            logits = head.cap * torch.tanh(logits / head.cap)
        log_p = torch.log_softmax(logits / temperature, dim=-1)
        return log_p[slot, ids], -(log_p.exp() * log_p).sum(-1)

    parts = [
        checkpoint(of_chunk, hidden_P[a:b], targets.ids_E[c:d], targets.slot_E[c:d] - a, use_reentrant=False)
        for a, b, c, d in edges
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


@dataclass(frozen=True, eq=False)
class _Settings:
    targets: Targets
    edges: list[tuple[int, int, int, int]]
    scale: float  # of the logits, temperature included
    dtype: torch.dtype  # of the matrix products


class _LinearLogprobs(torch.autograd.Function):
    """The same for a linear head. Of the logits only their log-sum-exp is kept; the backward makes them again."""

    @staticmethod
    def forward(
        ctx: Any, hidden_P: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, settings: _Settings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.float64 if hidden_P.dtype == torch.float64 else torch.float32
        logprobs_E = hidden_P.new_empty(len(settings.targets.ids_E), dtype=wide)
        lse_P, entropy_P = hidden_P.new_empty(2, len(hidden_P), dtype=wide)
        used = _Cast(hidden_P, weight, bias, settings.dtype)
        for a, b, c, d in settings.edges:
            logits = used.logits(a, b).mul_(settings.scale)
            lse_P[a:b] = logits.logsumexp(-1)
            log_p = logits.sub_(lse_P[a:b, None])
            logprobs_E[c:d] = log_p[settings.targets.slot_E[c:d] - a, settings.targets.ids_E[c:d]]
            entropy_P[a:b] = -torch.linalg.vecdot(log_p.exp(), log_p)
        ctx.save_for_backward(hidden_P, weight, bias, lse_P, entropy_P)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return logprobs_E, entropy_P

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_E: torch.Tensor | None, grad_entropy_P: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None]:
        hidden_P, weight, bias, lse_P, entropy_P = ctx.saved_tensors
        settings: _Settings = ctx.settings
        targets = settings.targets
        wants_hidden, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden_P) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=lse_P.dtype) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=lse_P.dtype) if wants_bias else None
        used = _Cast(hidden_P, weight, bias, settings.dtype)
        for a, b, c, d in settings.edges:
            log_p = used.logits(a, b).mul_(settings.scale).sub_(lse_P[a:b, None])
            grad = torch.zeros_like(log_p) if grad_E is None else None
            slot, ids = targets.slot_E[c:d] - a, targets.ids_E[c:d]
            if grad_entropy_P is not None:
                # dH/dlogit = -p (log p + H)
                grad = log_p.exp().mul_(log_p.add(entropy_P[a:b, None])).mul_(-grad_entropy_P[a:b, None])
            if grad_E is not None:
                through = grad_E.new_zeros(b - a).index_add_(0, slot, grad_E[c:d])
                softmax = log_p.exp_().mul_(-through[:, None])
                grad = softmax if grad is None else grad.add_(softmax)
                grad.index_put_((slot, ids), grad_E[c:d], accumulate=True)
            assert grad is not None
            grad = grad.mul_(settings.scale)
            narrow = grad.to(settings.dtype)
            if grad_hidden is not None:
                grad_hidden[a:b] = narrow @ used.weight
            if grad_weight is not None:
                grad_weight += narrow.T @ used.hidden[a:b]
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
        )


class _Cast:
    """Hidden states and head in the dtype of the matrix products, cast once."""

    def __init__(
        self, hidden_P: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        self.hidden = hidden_P.detach().to(dtype)
        self.weight = weight.detach().to(dtype)
        self.bias = None if bias is None else bias.detach().to(dtype)

    def logits(self, a: int, b: int) -> torch.Tensor:
        """Of positions a:b, in float32 or wider; a fresh tensor."""
        logits = F.linear(self.hidden[a:b], self.weight, self.bias)
        return _at_least_float32(logits)
