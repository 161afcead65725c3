"""Attention as a series of calls: blocks of queries, each against the runs of keys that it needs.

What a layer keeps for its backward are its queries, keys, values and outputs, each once, in the types they came in.
Autograd over the calls would keep what each of them was given: the keys of a path once for every block below it, which
for a chain grows with the square of its length. Here the backward puts the keys of a block together again, where they
are not one run anyway, and adds up their gradients in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch.autograd.function import once_differentiable

__all__ = ["Call", "Plan", "Run", "attend"]

Run = tuple[int, int, int]
"""Neighbouring keys start:stop of one of the tensors that the keys come in: (which, start, stop)."""
# Torch's fused attention for CPUs; earlier versions took as many heads of keys as of queries.
FUSED = torch.__version__ >= "2.9"


@dataclass(frozen=True, eq=False)
class Call:
    """Queries start:stop and their keys.

    The mask is added to the scores, shape (queries, keys); None: causal, with as many keys as queries.
    """

    start: int
    stop: int
    keys: tuple[Run, ...]
    mask: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class Plan:
    """Calls that cover all queries, in order; they compute in `dtype`, whatever they are given."""

    calls: tuple[Call, ...]
    dtype: torch.dtype


def attend(
    plan: Plan,
    query: Float[torch.Tensor, "1 H T D"],
    keys: Sequence[Float[torch.Tensor, "1 H_kv n D"]],
    values: Sequence[Float[torch.Tensor, "1 H_kv n V"]],
    scaling: float | None,
    dtype: torch.dtype,
) -> Float[torch.Tensor, "1 T H V"]:
    """softmax(scaling * query key^T + mask) value, in `dtype`; keys and values come in one tensor or in several.

    On CPUs torch's fused kernel goes backward from the softmax's log-sums. Where that does not serve, and on other
    devices, the backward runs each block's forward again.
    """
    return _Attend.apply(plan, scaling, dtype, query, *keys, *values)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, scaling: float | None, dtype: torch.dtype, query: torch.Tensor, *sides: torch.Tensor
    ) -> torch.Tensor:
        given = _Given(plan, query, sides)
        heads, queries = query.shape[1:3]
        output = query.new_empty((1, queries, heads, sides[-1].shape[-1]), dtype=dtype)
        log_sums: list[torch.Tensor | None] = []
        with torch.autocast(query.device.type, enabled=False):
            for call in plan.calls:
                found, log_sum = _forward(call, *given.of(call), scaling)
                output[:, call.start : call.stop] = found.transpose(1, 2)
                log_sums.append(log_sum)
        ctx.save_for_backward(query, *sides, output, *log_sums)
        ctx.rest = plan, scaling, len(sides)
        return output

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # a gradient for the output, by name
        ctx: Any, grad: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        plan, scaling, count = ctx.rest
        query, *others = ctx.saved_tensors
        sides, output, log_sums = others[:count], others[count], others[count + 1 :]
        given = _Given(plan, query, sides)
        grad_query = torch.empty_like(query, dtype=plan.dtype)
        grad_sides = [torch.zeros_like(side, dtype=plan.dtype) for side in sides]
        with torch.autocast(query.device.type, enabled=False):
            for call, log_sum in zip(plan.calls, log_sums, strict=True):
                own = slice(call.start, call.stop)
                grad_of, out = (t[:, own].transpose(1, 2).to(plan.dtype) for t in (grad, output))
                found = _backward(call, grad_of, given.of(call), (out, log_sum), scaling)
                grad_query[:, :, own] = found[0]
                _spread(call.keys, found[1], grad_sides[: count // 2])
                _spread(call.keys, found[2], grad_sides[count // 2 :])
        wanted = zip((grad_query, *grad_sides), (query, *sides), strict=True)
        return None, None, None, *(g.to(t.dtype) for g, t in wanted)


class _Given:
    """Queries, keys and values in the type of the computation."""

    def __init__(self, plan: Plan, query: torch.Tensor, sides: Sequence[torch.Tensor]) -> None:
        half = len(sides) // 2
        self.query = query.detach().to(plan.dtype)
        wide = [side.detach().to(plan.dtype) for side in sides]
        self.keys, self.values = wide[:half], wide[half:]

    def of(self, call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Those of a call; one run is a view."""
        query = self.query[:, :, call.start : call.stop]
        return query, _joined(self.keys, call.keys), _joined(self.values, call.keys)


def _joined(parts: Sequence[torch.Tensor], runs: Sequence[Run]) -> torch.Tensor:
    wanted = [parts[which][:, :, start:stop] for which, start, stop in runs]
    return wanted[0] if len(wanted) == 1 else torch.cat(wanted, dim=2)


def _spread(runs: Sequence[Run], grad: torch.Tensor, to: Sequence[torch.Tensor]) -> None:
    """Adds the gradient of joined runs to where they came from."""
    pieces = grad.split([stop - start for _, start, stop in runs], dim=2)
    for (which, start, stop), piece in zip(runs, pieces, strict=True):
        to[which][:, :, start:stop] += piece


def _forward(
    call: Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The output of a call, and the log-sums of its softmax where the backward wants them."""
    if _fused(query, key, value):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, call.mask is None, attn_mask=call.mask, scale=scaling
        )
    return _plain(call, query, key, value, scaling), None


def _backward(
    call: Call,
    grad: torch.Tensor,
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    found: tuple[torch.Tensor, torch.Tensor | None],
    scaling: float | None,
) -> Sequence[torch.Tensor]:
    """Gradients of a call's queries, keys and values from that of its output; `found` is what its forward gave."""
    if found[1] is not None:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, *given, *found, 0.0, call.mask is None, attn_mask=call.mask, scale=scaling
        )
    with torch.enable_grad():
        query, key, value = (t.detach().requires_grad_() for t in given)
        return torch.autograd.grad(_plain(call, query, key, value, scaling), (query, key, value), grad)


def _fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    return (
        FUSED
        and query.device.type == "cpu"
        and query.shape[-1] == value.shape[-1]
        and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    )


def _plain(
    call: Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=call.mask,
        is_causal=call.mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
