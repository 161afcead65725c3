"""Attention on packed trees by torch's flex attention: one fused kernel over the blocks of pairs that count.

Which blocks of 128 x 128 pairs hold a pair that counts, and which hold no other, follows from the least and the
greatest `end` and depth of each block of tokens (the interval test of `attention.py`): T / 128 numbers a side, and no
tensor of T x T. The kernel is compiled once, for any number of tokens.

Departure: on CPUs torch's flex attention has no backward, and its compiled forward takes fixed lengths only; models
there are refused, and tests run the same masks through torch's unfused implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from phloem.forward.features import CannotServe

__all__ = ["attend", "block_mask", "compiled", "refuse_device"]

BLOCK = 128
VARIANTS = 64
# The decoding kernel that torch takes for few queries would be one more to compile.
KERNEL: Any = {"FORCE_USE_FLEX_ATTENTION": True}


def refuse_device(device: torch.device) -> None:
    """Raises CannotServe where flex attention cannot be trained through."""
    if device.type != "cuda":
        raise CannotServe(
            f"flex attention has no backward on {device.type}: set model.attention to paths, or move the model to CUDA"
        )


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: BlockMask, scaling: float | None
) -> torch.Tensor:
    """query (1, H, Q, D), key and value (1, H_kv, K, D), to (1, Q, H, D)."""
    run = compiled() if query.device.type == "cuda" else flex_attention
    found = run(
        query,
        key,
        value,
        block_mask=mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        kernel_options=KERNEL,
    )
    return found.transpose(1, 2)


def block_mask(
    end_K: Int[torch.Tensor, " K"], depth_K: Int[torch.Tensor, " K"], above: int, window: int | None
) -> BlockMask:
    """The mask of the last K - above tokens, as queries, against all K.

    Args:
        end_K: one past the last descendant of each token, in pre-order.
        depth_K: position in the row.
        above: leading tokens that are keys only.
        window: of sliding attention; None: full.
    """
    tokens, device = len(end_K), end_K.device
    some_QK, full_QK = _blocks(end_K, depth_K, above, window)
    partial = _listed(some_QK & ~full_QK)
    end_K, depth_K = end_K.int(), depth_K.int()
    index_Q = torch.arange(above, tokens, dtype=torch.int32, device=device)
    return BlockMask.from_kv_blocks(
        *partial,
        *_listed(full_QK),
        BLOCK_SIZE=BLOCK,
        mask_mod=_sees(end_K, index_Q) if window is None else _sees_near(end_K, index_Q, depth_K, above, window),
        seq_lengths=(tokens - above, tokens),
    )


def _sees(end_K: torch.Tensor, index_Q: torch.Tensor) -> Callable[..., torch.Tensor]:
    def sees(batch: Any, head: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        own = index_Q[q]
        return (k <= own) & (own < end_K[k])

    return sees


def _sees_near(
    end_K: torch.Tensor, index_Q: torch.Tensor, depth_K: torch.Tensor, above: int, window: int
) -> Callable[..., torch.Tensor]:
    depth_Q = depth_K[above:].contiguous()

    def sees(batch: Any, head: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        own = index_Q[q]
        return (k <= own) & (own < end_K[k]) & (depth_Q[q] - depth_K[k] < window)

    return sees


def _blocks(
    end_K: torch.Tensor, depth_K: torch.Tensor, above: int, window: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which blocks (queries, keys) may hold a pair that counts, and which hold no other; bool, shape (n_Q, n_K).

    A token before a block of queries counts for one of them if and only if it counts for the first: its descendants
    are an interval. With a window the first of the two is an upper bound: the depths of a block's extremes may belong
    to other branches.
    """
    queries = -(-(len(end_K) - above) // BLOCK)
    first_Q = above + BLOCK * torch.arange(queries, device=end_K.device)[:, None]
    first_K = BLOCK * torch.arange(-(-len(end_K) // BLOCK), device=end_K.device)
    least_end, most_end = _extremes(end_K, least=0, most=0)  # a block with less than 128 tokens is never full
    some = (first_K < first_Q + BLOCK) & (most_end > first_Q)
    full = (first_K + BLOCK <= first_Q + 1) & (least_end >= first_Q + BLOCK)
    if window is not None:
        deep = int(depth_K.max()) + 1
        shallow_K, deep_K = _extremes(depth_K, least=deep, most=-1)
        shallow_Q, deep_Q = _extremes(depth_K[above:], least=deep, most=-1)
        some &= shallow_Q[:, None] - deep_K < window
        full &= deep_Q[:, None] - shallow_K < window
    return some, full


def _extremes(values: torch.Tensor, least: int, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest value of each block; the last block is filled up with `least` and `most`."""
    missing = -len(values) % BLOCK
    low, high = (F.pad(values, (0, missing), value=filler).view(-1, BLOCK) for filler in (least, most))
    return low.amin(1), high.amax(1)


def _listed(wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each block of queries the number of wanted blocks of keys, and their indices first in a row of all."""
    order = torch.argsort(wanted.int(), dim=1, descending=True, stable=True)
    return wanted.sum(1).int()[None, None], order.int()[None, None].contiguous()


@cache
def compiled(backend: Any = "inductor") -> Callable[..., Any]:
    """The kernel for any number of tokens.

    It is made once for each kind of call: full or windowed, with or without gradient, whole trees or pieces, one block
    or several. That is more than torch allows a function before it falls back to the unfused implementation, so the
    limit is raised; `fullgraph` makes an error of what would still be a silent fall-back.
    """
    from torch._dynamo import config

    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, name, max(VARIANTS, getattr(config, name)))
    return torch.compile(flex_attention, dynamic=True, fullgraph=True, backend=backend)
