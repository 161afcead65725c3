"""Attention on packed trees: two back ends for transformers' attention interface.

A token attends to its ancestors and itself. In depth-first pre-order that is an interval test: k is seen by q iff
`k <= q < end[k]`; a sliding window of w tokens adds `depth[q] - depth[k] < w`.

- `dense`: one call per tree, with the mask of all its pairs. The reference.
- `paths`: one call per block of neighbouring tokens, against the path above the block and itself (`blocks.py`):
  nearly only pairs that count are computed, and no mask is larger than a block and its path.

The pack travels as a keyword argument through the model's layers, so that gradient checkpointing recomputes with the
same one. Without a pack (sampling, evaluation) both back ends are transformers' SDPA, caches and padding included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from phloem.forward import blocks
from phloem.forward.features import CannotServe
from phloem.forward.pack import Pack
from phloem.tree.trie import PrefixTree

__all__ = ["ENGINES", "attention_name", "pack_arguments", "windows_used"]

ENGINES = ("dense", "paths")
PACK_ARGUMENT = "phloem_pack"
# Arguments that some models hand to their attention and that change what it computes.
REFUSED = {
    "softcap": "attention soft caps",
    "s_aux": "attention sinks",
    "position_bias": "relative position bias",
}


def attention_name(engine: str) -> str:
    """The name under which transformers knows a back end."""
    return f"phloem_{engine}"


def pack_arguments(pack: Pack) -> dict[str, Any]:
    """What a model's body is called with to run on a pack.

    The attention mask is a stand-in of one element: its four dimensions keep transformers from building a T x T mask
    of its own.
    """
    return {
        "input_ids": pack.tokens_T[None],
        "position_ids": pack.position_T[None],
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=pack.tokens_T.device),
        "use_cache": False,
        PACK_ARGUMENT: pack,
    }


def windows_used(pack: Pack) -> set[int | None]:
    """The sliding windows that the layers of a model asked for when it ran on this pack (None: full attention)."""
    return {window for _, window, _ in pack.plans}


@dataclass(frozen=True, eq=False)
class _Call:
    """One call: which pieces of the pack are its keys, how many of the last of them are its queries, and its mask.

    The mask is added to the scores, shape (queries, keys); None: causal.
    """

    pieces: tuple[int, ...]
    queries: int
    mask: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class _Plan:
    """The sizes of the pieces that a pack is split into, and the calls over them, in the order of their queries."""

    sizes: tuple[int, ...]
    calls: tuple[_Call, ...]


def _tree_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    engine: str,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What a layer calls: query (1, H, T, D), key and value (1, H_kv, T, D), to (1, T, H, D).

    Raises:
        CannotServe: the layer's attention is not plain, or the pack got lost on the way to it.
        ValueError: attention weights are to be dropped.
    """
    pack: Pack | None = kwargs.pop(PACK_ARGUMENT, None)
    if pack is None:
        if attention_mask is not None and attention_mask.shape[-1] != key.shape[2]:
            raise CannotServe(f"{type(module).__name__} was not handed the pack: its model drops keyword arguments")
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    found = [meaning for name, meaning in REFUSED.items() if kwargs.get(name) is not None]
    if attention_mask is not None and attention_mask.numel() > 1:
        found.append("an attention mask of its own making")
    if found:
        raise CannotServe(f"{type(module).__name__} uses {', '.join(found)}, which the tree forward does not serve")
    if kwargs.get("dropout"):
        raise ValueError(f"{type(module).__name__} drops attention weights: call forward.prepare on the model first")
    device = query.device
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else query.dtype
    # On CPUs SDPA is no faster in half precision than in float32, and on small blocks it takes twice as long.
    wide = torch.float32 if device.type == "cpu" and dtype.itemsize < 4 else dtype
    plan = _plan(pack, engine, kwargs.get("sliding_window"), wide, device)
    with torch.autocast(device.type, enabled=False):
        output = _run(plan, query.to(wide), key.to(wide), value.to(wide), kwargs.get("scaling"))
    return output.to(dtype), None


def _run(
    plan: _Plan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    # Splitting once, rather than slicing for each call, keeps the backward from filling a T-long gradient per slice.
    queries = query.split([call.queries for call in plan.calls], dim=2)
    keys, values = key.split(plan.sizes, dim=2), value.split(plan.sizes, dim=2)
    outputs = [
        F.scaled_dot_product_attention(
            q,
            _joined(keys, call.pieces),
            _joined(values, call.pieces),
            attn_mask=call.mask,
            is_causal=call.mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        ).transpose(1, 2)
        for q, call in zip(queries, plan.calls, strict=True)
    ]
    return torch.cat(outputs, dim=1)


def _joined(parts: tuple[torch.Tensor, ...], wanted: tuple[int, ...]) -> torch.Tensor:
    return parts[wanted[0]] if len(wanted) == 1 else torch.cat([parts[i] for i in wanted], dim=2)


def _plan(pack: Pack, engine: str, window: int | None, dtype: torch.dtype, device: torch.device) -> _Plan:
    """The calls for one kind of layer; made once per pack, for all layers of the kind."""
    found = pack.plans.get((engine, window, dtype))
    if found is None:
        found = pack.plans[engine, window, dtype] = _make_plan(pack, engine, window, dtype, device)
    return found


def _make_plan(pack: Pack, engine: str, window: int | None, dtype: torch.dtype, device: torch.device) -> _Plan:
    chosen = [
        (tree, first, block)
        for first, tree in zip(pack.tree_start.tolist(), pack.trees, strict=False)
        for block in (blocks.whole(tree) if engine == "dense" else blocks.cut(tree, window))
    ]
    bounds = {len(pack)}
    for _, first, block in chosen:
        bounds.update(first + place for run in block.runs for place in run)
    edges = np.array(sorted(bounds))
    masks = _masks([(tree, block) for tree, _, block in chosen], window, dtype, device)
    calls = []
    for (_, first, block), mask in zip(chosen, masks, strict=True):
        spans = [np.searchsorted(edges, [first + a, first + b]) for a, b in block.runs]
        calls.append(_Call(tuple(int(i) for a, b in spans for i in range(a, b)), block.queries, mask))
    return _Plan(tuple(np.diff(edges).tolist()), tuple(calls))


def _masks(
    chosen: list[tuple[PrefixTree, blocks.Block]], window: int | None, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor | None]:
    """The masks to add to the scores; those of chains are corners of one matrix, so that long rows cost little."""
    chains = [blocks.is_chain(tree, block, window) for tree, block in chosen]
    below = [block for (_, block), chain in zip(chosen, chains, strict=True) if chain and block.above]
    height = max((block.queries for block in below), default=0)
    above = max((len(block.keys) - block.queries for block in below), default=0)
    matrix = F.pad(torch.full((height, height), -torch.inf, dtype=dtype).triu(1), (above, 0)).to(device)
    masks: list[torch.Tensor | None] = []
    for (tree, block), chain in zip(chosen, chains, strict=True):
        if not chain:
            seen = torch.from_numpy(blocks.mask(tree, block, window))
            masks.append(torch.where(seen, 0.0, -torch.inf).to(device, dtype))
        elif block.above:
            left = above - (len(block.keys) - block.queries)
            masks.append(matrix[: block.queries, left : left + len(block.keys)])
        else:
            masks.append(None)
    return masks


for _engine in ENGINES:
    AttentionInterface.register(attention_name(_engine), partial(_tree_attention, engine=_engine))
    AttentionMaskInterface.register(attention_name(_engine), sdpa_mask)
