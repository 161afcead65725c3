"""Rates of this machine, in FLOPs per second: of its matrix products, and of a row-by-row update on it.

Both are measured, so that shares of them mean the same on every machine. They hold for the moment they were taken at:
on a machine that other programs use too they vary with its load.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
import torch
from torch import nn

from phloem.forward.dfs import Machine
from phloem.forward.plan import ModelSize, flops_at
from phloem.forward.rows_batched import row_batches
from phloem.tree.rollout import Group

__all__ = ["matmul_rate", "rows_rate", "synchronise"]

SIDE = {"cpu": 1024, "cuda": 8192}
REPEATS = 2


def synchronise(device: torch.device) -> None:
    """Waits until a device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_rate(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> float:
    """The best rate of square matrix products in `dtype` within some seconds (at least two products)."""
    side = SIDE.get(device.type, SIDE["cpu"])
    a = torch.full((side, side), 0.5, dtype=dtype, device=device)
    product = a @ a
    best, spent, taken = 0.0, 0.0, 0
    while spent < seconds or taken < 1:
        synchronise(device)
        start = perf_counter()
        torch.mm(a, a, out=product)
        synchronise(device)
        took = perf_counter() - start
        best, spent, taken = max(best, 2.0 * side**3 / took), spent + took, taken + 1
    return best


def rows_rate(
    model: nn.Module, groups: Sequence[Group], machine: Machine, size: ModelSize, temperature: float, max_tokens: int
) -> float:
    """The rate of forward and backward over one micro-batch of some groups' rows, padding not counted as work.

    Parameters must have no gradient, and have none afterwards; random numbers go on as if nothing had been drawn.

    Args:
        model: prepared.
        groups: whose longest rows are taken.
        machine: precision and how to go backward.
        size: of the model.
        temperature: of sampling.
        max_tokens: padded tokens of the micro-batch.

    Returns:
        The better of two passes; NaN where a row alone is over `max_tokens`.
    """
    device = next(model.parameters()).device
    longest = max(len(g.prompt) + len(g.completion(r)) for g in groups for r in range(g.group_size))
    if longest > max_tokens:
        return float("nan")
    rates = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for _ in range(REPEATS):
            synchronise(device)
            start = perf_counter()
            with machine.autocast():
                batch = next(row_batches(model, groups, temperature, max_tokens))
            machine.backward(batch.logprobs_E.sum())
            synchronise(device)
            seconds = perf_counter() - start
            lengths = [len(groups[g].prompt) + len(groups[g].completion(r)) for g, r in batch.members]
            positions = np.concatenate([np.arange(length) for length in lengths])
            rates.append(flops_at(size, positions, len(batch.logprobs_E)) / seconds)
            model.zero_grad(set_to_none=True)
    return max(rates)
