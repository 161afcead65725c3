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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """The sizes of the pieces that keys are split into, and the calls over them, in the order of their queries.

    The first pieces are those of tokens above, whose keys are given and which are no queries; a pack has none.
    """

    above: tuple[int, ...]
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
    above = pack.exchange(module, key, value)
    keys, values = ([t.to(wide) for t in (*given, own)] for given, own in zip(above, (key, value), strict=True))
    plan = _plan(pack, engine, kwargs.get("sliding_window"), wide, device)
    with torch.autocast(device.type, enabled=False):
        if isinstance(plan, _Plan):
            output = _run(plan, query.to(wide), keys, values, kwargs.get("scaling"))
        else:
            every = range(len(keys))
            joined = (_joined(keys, every), _joined(values, every))
            output = flex.attend(query.to(wide), *joined, plan, kwargs.get("scaling"))
    return output.to(dtype), None


def _run(
    plan: _Plan, query: torch.Tensor, key: list[torch.Tensor], value: list[torch.Tensor], scaling: float | None
) -> torch.Tensor:
    # Splitting once, rather than slicing for each call, keeps the backward from filling a T-long gradient per slice.
    queries = query.split([call.queries for call in plan.calls], dim=2)
    sizes = [plan.above, plan.sizes] if plan.above else [plan.sizes]
    keys, values = (
        tuple(piece for whole, own in zip(side, sizes, strict=True) for piece in whole.split(own, dim=2))
        for side in (key, value)
    )
    outputs = [
        F.scaled_dot_product_attention(
            q,
            _joined(keys, call.pieces),
            _joined(values, call.pieces),
            attn_mask=call.mask,
            is_causal=call.mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key[0].shape[1],
        ).transpose(1, 2)
        for q, call in zip(queries, plan.calls, strict=True)
    ]
    return torch.cat(outputs, dim=1)


def _joined(parts: Sequence[torch.Tensor], wanted: Sequence[int]) -> torch.Tensor:
    return parts[wanted[0]] if len(wanted) == 1 else torch.cat([parts[i] for i in wanted], dim=2)


def _plan(pack: Layout, engine: str, window: int | None, dtype: torch.dtype, device: torch.device) -> _Plan | BlockMask:
    """The calls, or flex attention's mask, for one kind of layer; made once per pack, for all layers of the kind."""
    found = pack.plans.get((engine, window, dtype))
    if found is None:
        if engine == "flex":
            found = flex.block_mask(*pack.end_and_depth(device), pack.above, window)
        else:
            found = _make_plan(pack, engine, window, dtype, device)
        pack.plans[engine, window, dtype] = found
    return found


def _make_plan(pack: Layout, engine: str, window: int | None, dtype: torch.dtype, device: torch.device) -> _Plan:
    cut: Callable[[PrefixTree], list[blocks.Block]] = blocks.whole
    if engine == "paths":
        cut = partial(blocks.cut, window=window)
    chosen = pack.blocks(cut)
    bounds = {0, pack.above, len(pack)}
    for _, _, runs in chosen:
        bounds.update(place for run in runs for place in run)
    edges = np.array(sorted(bounds))
    masks = _masks([(tree, block) for tree, block, _ in chosen], window, dtype, device)
    calls = []
    for (_, block, runs), mask in zip(chosen, masks, strict=True):
        spans = [np.searchsorted(edges, run) for run in runs]
        calls.append(_Call(tuple(int(i) for a, b in spans for i in range(a, b)), block.queries, mask))
    sizes, given = np.diff(edges).tolist(), int(np.searchsorted(edges, pack.above))
    return _Plan(tuple(sizes[:given]), tuple(sizes[given:]), tuple(calls))


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
