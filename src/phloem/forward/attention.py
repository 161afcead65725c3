"""Attention on packed trees: three back ends for transformers' attention interface.

A token attends to its ancestors and itself. In depth-first pre-order that is an interval test: k is seen by q iff
`k <= q < end[k]`; a sliding window of w tokens adds `depth[q] - depth[k] < w`.

- `dense`: one call per tree, with the mask of all its pairs. The reference.
- `paths`: one call per block of neighbouring tokens, against the path above the block and itself (`blocks.py`):
  nearly only pairs that count are computed, and no mask is larger than a block and its path.
- `flex`: one fused kernel over the blocks that hold pairs that count (`flex.py`).

The pack (or the piece of a tree, see `dfs.py`) travels as a keyword argument through the model's layers, so that
gradient checkpointing recomputes with the same one. Without it (sampling, evaluation) the back ends are transformers'
SDPA, caches and padding included.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from phloem.forward import blocks, flex
from phloem.forward.calls import Call, Plan, Run, attend
from phloem.forward.features import CannotServe
from phloem.forward.pack import Layout
from phloem.tree.trie import PrefixTree

__all__ = ["ENGINES", "attention_name", "pack_arguments", "windows_used"]

ENGINES = ("dense", "paths", "flex")
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


def pack_arguments(pack: Layout) -> dict[str, Any]:
    """What a model's body is called with to run on a pack or a piece.

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


def windows_used(pack: Layout) -> set[int | None]:
    """The sliding windows that the layers of a model asked for when it ran on this pack (None: full attention)."""
    return {window for _, window, _ in pack.plans}


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
    pack: Layout | None = kwargs.pop(PACK_ARGUMENT, None)
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
    # Rotary embeddings leave queries and keys in float32; SDPA under autocast narrows them too.
    query, key, value = (t.to(dtype) for t in (query, key, value))
    above = pack.exchange(module, key, value)
    keys, values = ([*given, own] for given, own in zip(above, (key, value), strict=True))
    plan, scaling = _plan(pack, engine, kwargs.get("sliding_window"), wide, device), kwargs.get("scaling")
    if isinstance(plan, Plan):
        return attend(plan, query, keys, values, scaling, dtype), None
    with torch.autocast(device.type, enabled=False):
        key, value = (side[0] if len(side) == 1 else torch.cat([*side], dim=2) for side in (keys, values))
        return flex.attend(query.to(wide), key.to(wide), value.to(wide), plan, scaling).to(dtype), None


def _plan(pack: Layout, engine: str, window: int | None, dtype: torch.dtype, device: torch.device) -> Plan | BlockMask:
    """The calls, or flex attention's mask, for one kind of layer; made once per pack, for all layers of the kind."""
    found = pack.plans.get((engine, window, dtype))
    if found is None:
        if engine == "flex":
            found = flex.block_mask(*pack.end_and_depth(device), pack.above, window)
        else:
            found = _make_plan(pack, engine, window, dtype, device)
        pack.plans[engine, window, dtype] = found
    return found


def _make_plan(pack: Layout, engine: str, window: int | None, dtype: torch.dtype, device: torch.device) -> Plan:
    cut: Callable[[PrefixTree], list[blocks.Block]] = blocks.whole
    if engine == "paths":
        cut = partial(blocks.cut, window=window)
    chosen = pack.blocks(cut)
    masks = _masks([(tree, block) for tree, block, _ in chosen], window, dtype, device)
    stops = np.cumsum([block.queries for _, block, _ in chosen]).tolist()
    calls = [
        Call(stop - block.queries, stop, _runs(places, pack.above), mask)
        for (_, block, places), stop, mask in zip(chosen, stops, masks, strict=True)
    ]
    return Plan(tuple(calls), dtype)


def _runs(places: list[tuple[int, int]], above: int) -> tuple[Run, ...]:
    """Places among all keys as runs of those above, which come in a tensor of their own, and of the layer's own."""
    edges: list[int] = []
    for start, stop in places:
        if edges and edges[-1] == start:
            edges[-1] = stop
        else:
            edges += [start, stop]
    runs: list[Run] = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        if start < above:
            runs.append((0, start, min(stop, above)))
        if stop > above:
            runs.append((int(above > 0), max(start - above, 0), stop - above))
    return tuple(runs)


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
