"""Log-probabilities of chosen tokens from hidden states, without the logits of all positions at once.

The head is applied to `chunk` positions at a time, and again in the backward, so that memory is bounded by chunk x V
(and a constant) whatever the number of positions. A position may have several targets (the children of a fork): its
logits are made once.
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

# Logits up to this many elements are kept for the backward instead of made again: at most 128 MiB in float32.
KEEP = 2**25


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
        keep = KEEP if torch.is_grad_enabled() else 0
        settings = _Settings(targets, edges, head.scale / temperature, dtype, keep)
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
    keep: int  # how many elements of logits may be kept for the backward


class _LinearLogprobs(torch.autograd.Function):
    """The same for a linear head, with as few passes over the logits as will do.

    The backward makes the logits again, but for the first few chunks, whose logits are kept. With p the softmax, the
    gradient of the logits is -p times the sum of a position's incoming gradients, plus the incoming gradient at each
    target: row factors and targets are applied to hidden states and rows of the head, not to positions x V.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_P: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, settings: _Settings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        targets, scale = settings.targets, settings.scale
        wide = torch.float64 if hidden_P.dtype == torch.float64 else torch.float32
        logprobs_E = hidden_P.new_empty(len(targets.ids_E), dtype=wide)
        entropy_P = hidden_P.new_empty(len(hidden_P), dtype=wide)
        kept: list[torch.Tensor] = []
        room = settings.keep
        with torch.autocast(hidden_P.device.type, enabled=False):
            used = _Cast(hidden_P, weight, bias, settings.dtype)
            for a, b, c, d in settings.edges:
                logits = used.logits(a, b)
                room -= logits.numel()
                if room >= 0:
                    kept.append(logits)
                log_p = torch.log_softmax(_scaled(logits, scale), -1)
                logprobs_E[c:d] = log_p[targets.slot_E[c:d] - a, targets.ids_E[c:d]]
                # A sum, not a product with ones or a dot product: over a vocabulary those are off by 1e-4 in float32.
                entropy_P[a:b] = -log_p.exp().mul_(log_p).sum(-1)
        ctx.save_for_backward(hidden_P, weight, bias, entropy_P, *kept)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return logprobs_E, entropy_P

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_E: torch.Tensor | None, grad_entropy_P: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None]:
        hidden_P, weight, bias, entropy_P, *kept = ctx.saved_tensors
        settings: _Settings = ctx.settings
        targets, scale = settings.targets, settings.scale
        wants_hidden, wants_weight, wants_bias, _ = ctx.needs_input_grad
        wide = entropy_P.dtype
        grad_E = entropy_P.new_zeros(len(targets.ids_E)) if grad_E is None else grad_E
        through_P = entropy_P.new_zeros(len(hidden_P)).index_add_(0, targets.slot_E, grad_E)
        grad_hidden = hidden_P.new_empty(hidden_P.shape, dtype=wide) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if wants_bias else None
        with torch.autocast(hidden_P.device.type, enabled=False):
            used = _Cast(hidden_P, weight, bias, settings.dtype)
            for i, (a, b, _, _) in enumerate(settings.edges):
                logits = _scaled(kept[i] if i < len(kept) else used.logits(a, b), scale)
                spread, factor = torch.softmax(logits, -1), -scale * through_P[a:b, None]
                if grad_entropy_P is not None:
                    # dH / dlogits = -p (log p + H)
                    surprise = torch.log_softmax(logits, -1).add_(entropy_P[a:b, None])
                    spread.mul_(surprise.mul_(grad_entropy_P[a:b, None]).add_(through_P[a:b, None]))
                    factor = torch.full_like(factor, -scale)
                del logits
                narrow = spread.to(settings.dtype)
                if grad_hidden is not None:
                    grad_hidden[a:b] = (narrow @ used.weight).to(wide) * factor
                if grad_weight is not None:
                    grad_weight += narrow.T @ (used.hidden[a:b] * factor).to(settings.dtype)
                if grad_bias is not None:
                    grad_bias += spread.T @ factor[:, 0]
            at_targets = scale * grad_E[:, None]
            if grad_hidden is not None:
                grad_hidden.index_add_(0, targets.slot_E, at_targets * used.weight[targets.ids_E])
            if grad_weight is not None:
                grad_weight.index_add_(0, targets.ids_E, at_targets * used.hidden[targets.slot_E])
            if grad_bias is not None:
                grad_bias.index_add_(0, targets.ids_E, at_targets[:, 0])
        return (
            None if grad_hidden is None else grad_hidden.to(hidden_P.dtype),
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
        """Of positions a:b."""
        return F.linear(self.hidden[a:b], self.weight, self.bias)


def _scaled(logits: torch.Tensor, scale: float) -> torch.Tensor:
    """Scaled, in float32 or wider; the same tensor where nothing changes."""
    wide = _at_least_float32(logits)
    return wide if scale == 1 else wide * scale
