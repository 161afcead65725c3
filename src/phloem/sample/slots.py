"""The key-value store of the rows that are decoded together.

A prompt's keys and values are kept once, in a block, whatever the number of rows that continue it; a row keeps only
those of its own segments. One decode step attends from each row to its prompt's block and to its own tokens: the
scores of both parts go through one softmax.

`Slots` is a transformers `Cache`, so that a model's forward fills it, and `slot_attention` is an attention function
of transformers' registry, so that every model which takes its attention from there (and hands it `sliding_window`
where it has one) can be decoded: position ids and masks are made here, not by the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicLayer

from phloem.sample.sampler import SampleError

__all__ = ["ATTENTION", "Slots", "slot_attention"]

ATTENTION = "phloem_slots"
"""The name of `slot_attention` in transformers' registry."""
_ROOM = 128
"""Tokens of their own that rows have room for at first, or fewer where none can have so many; doubled when used up."""


@dataclass
class _Step:
    """Index tensors and masks of one decode step over n rows; made once, used by every layer.

    Attributes:
        own: tokens of their own that rows have, the current one included, (n,); `length` is the most.
        rows: 0..n-1.
        grid: rows by prompt block, (blocks, most rows of a block), padded with row 0.
        place: where a row stands in the flattened grid, (n,).
        distance: query position minus key position for block keys and own keys, (n, P + L); a negative number or
            a key that does not exist is masked.
        masks: additive masks by sliding window, (n, 1, 1, P + L); None where nothing is masked.
        moves: by number of heads, which (row, head) stands at each (block, head, column) of the grid, and which of
            those holds each (row, head); flat indices.
    """

    own: torch.Tensor
    rows: torch.Tensor
    grid: torch.Tensor
    place: torch.Tensor
    distance: torch.Tensor
    length: int
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)
    moves: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        if window not in self.masks:
            hidden = self.distance < 0
            if window is not None:
                hidden |= self.distance >= window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
            self.masks[window] = mask[:, None, None, :] if hidden.any() else None
        return self.masks[window]

    def between(self, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        if heads not in self.moves:
            head = torch.arange(heads, device=self.rows.device)[:, None]
            width = self.grid.shape[1]
            block, column = (self.place // width)[:, None], (self.place % width)[:, None]
            to_grid = self.grid[:, None] * heads + head
            to_rows = (block * heads + head.T) * width + column
            self.moves[heads] = to_grid.flatten(), to_rows.flatten()
        return self.moves[heads]


class _Layer(DynamicLayer):
    """Keys and values of one layer: `blocks` (2, blocks, heads, P, d) and `own` (2, rows, heads, L, d)."""

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self.slots = slots
        self.blocks = self.own = torch.empty(0)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        if not self.is_initialized:
            heads, size = key_states.shape[1], key_states.shape[3]
            # Zeros, not garbage: a masked key still enters a product, and 0 x nan is nan.
            make = partial(torch.zeros, dtype=key_states.dtype, device=key_states.device)
            self.blocks = make(2, self.slots.n_blocks, heads, self.slots.block_length, size)
            self.own = make(2, self.slots.n_rows, heads, 0, size)
            self.is_initialized = True
        step = self.slots.step
        if step is None:
            into = self.slots.filling
            length = key_states.shape[2]
            self.blocks[0, into, :, :length] = key_states
            self.blocks[1, into, :, :length] = value_states
        else:
            if (room := self.own.shape[3]) < step.length:
                wanted = min(max(_ROOM, 2 * room), self.slots.own_length)
                self.own = F.pad(self.own, (0, 0, 0, wanted - room))
            at = step.own - 1
            self.own[0, step.rows, :, at] = key_states[:, :, 0]
            self.own[1, step.rows, :, at] = value_states[:, :, 0]
        return key_states, value_states

    def get_seq_length(self) -> int:
        return 0


class Slots(Cache):
    """Blocks for prompts and slots for rows; the first n slots are the rows in use.

    Args:
        rows: slots for rows.
        blocks: prompts kept at a time.
        block_length: tokens of the longest prompt.
        own_length: tokens that a row can have of its own at the most.
    """

    def __init__(self, rows: int, blocks: int, block_length: int, own_length: int) -> None:
        super().__init__(layer_class_to_replicate=partial(_Layer, self))  # pyright: ignore[reportArgumentType]
        self.n_rows, self.n_blocks, self.block_length, self.own_length = rows, blocks, block_length, own_length
        self.prompt_length = np.zeros(blocks, dtype=np.int64)
        self.block_of_row = np.zeros(rows, dtype=np.int64)
        self.own_tokens = np.zeros(rows, dtype=np.int64)
        self.step: _Step | None = None
        self.filling = torch.empty(0, dtype=torch.long)

    def begin_prefill(self, blocks: list[int], lengths: list[int], device: torch.device) -> None:
        """The next forward fills these blocks with right-padded prompts of these lengths."""
        self.step = None
        self.filling = torch.tensor(blocks, device=device)
        self.prompt_length[blocks] = lengths

    def begin_step(self, n: int, device: torch.device) -> torch.Tensor:
        """The next forward adds one token to each of the rows 0..n-1; returns its position ids, (n, 1)."""
        self.own_tokens[:n] += 1
        own, block = self.own_tokens[:n], self.block_of_row[:n]
        order = np.argsort(block, kind="stable")
        used, start, count = np.unique(block[order], return_index=True, return_counts=True)
        column = np.arange(n) - np.repeat(start, count)
        width = int(count.max())
        grid = np.zeros((int(used[-1]) + 1, width), dtype=np.int64)
        grid[block[order], column] = order
        place = np.empty(n, dtype=np.int64)
        place[order] = block[order] * width + column

        prompt = self.prompt_length[block]
        position = prompt + own - 1
        longest, length = int(prompt.max()), int(own.max())
        keys = np.concatenate([np.arange(longest), np.arange(length)])[None, :]
        in_block = np.arange(longest + length)[None, :] < longest
        key_position = np.where(in_block, keys, keys + prompt[:, None])
        exists = np.where(in_block, keys < prompt[:, None], keys < own[:, None])
        distance = np.where(exists, position[:, None] - key_position, -1)

        def put(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        self.step = _Step(put(own.copy()), put(np.arange(n)), put(grid), put(place), put(distance), length)
        return put(position)[:, None]

    def take(self, row: int) -> list[torch.Tensor]:
        """A copy of a row's own keys and values, one tensor (2, heads, tokens, d) per layer."""
        n = int(self.own_tokens[row])
        return [layer.own[:, row, :, :n].clone() for layer in self.layers]  # pyright: ignore

    def put(self, rows: slice, block: int, own: list[torch.Tensor] | None) -> None:
        """Starts rows on a prompt's block, with the keys and values of a fork (None: right after the prompt)."""
        self.block_of_row[rows] = block
        self.own_tokens[rows] = 0 if own is None else own[0].shape[2]
        if own is not None:
            for layer, kept in zip(self.layers, own, strict=True):
                layer.own[:, rows, :, : kept.shape[2]] = kept[:, None]  # pyright: ignore

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """Moves rows into other slots; the two sets of rows are disjoint."""
        length = int(self.own_tokens[source].max(initial=0))
        for array in (self.own_tokens, self.block_of_row):
            array[target] = array[source]
        for layer in self.layers:
            layer.own[:, target, :, :length] = layer.own[:, source, :, :length]  # pyright: ignore


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    slots: Slots | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over `Slots`; the signature is that of transformers' attention functions.

    Raises:
        SampleError: a model that does not hand its keyword arguments on, or that needs more than a sliding window
            (soft caps, sinks, position biases).
    """
    name = type(module).__name__
    if slots is None:
        raise SampleError(f"{name} does not pass keyword arguments to its attention function: it cannot be sampled")
    for feature in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(feature) is not None:
            raise SampleError(f"{name} uses `{feature}`, which the sampler's attention does not compute")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if slots.step is None:
        return _prefill(query, key, value, scale, sliding_window), None
    layer = slots.layers[module.layer_idx]  # pyright: ignore[reportArgumentType, reportCallIssue]
    return _decode(query, layer, slots.step, scale, sliding_window), None


def _prefill(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """Causal attention inside right-padded prompts: padding comes last, so no real token sees it."""
    length = query.shape[2]
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if window is None or length <= window:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    else:
        at = torch.arange(length, device=query.device)
        distance = at[:, None] - at[None, :]
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=(distance >= 0) & (distance < window), scale=scale
        )
    return out.transpose(1, 2)


def _decode(query: torch.Tensor, layer: Any, step: _Step, scale: float, window: int | None) -> torch.Tensor:
    """One query token per row: (n, heads, 1, d) -> (n, 1, heads, d).

    Products with a block's keys and values take all of its rows at once, in the grid; the rest is row by row, with
    (row, head of keys) as one axis.
    """
    n, heads, _, size = query.shape
    kv_heads = layer.own.shape[2]
    group = heads // kv_heads
    to_grid, to_rows = step.between(kv_heads)
    longest = step.distance.shape[1] - step.length
    block_keys, block_values = layer.blocks[:, : len(step.grid), :, :longest].flatten(1, 2)
    own_keys, own_values = layer.own[:, :n, :, : step.length].flatten(1, 2)

    def by_block(x: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, to_grid).view(len(block_keys), -1, x.shape[-1])

    def by_row(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, group, x.shape[-1]).index_select(0, to_rows)

    rows = (query * scale).view(n * kv_heads, group, size)
    on_block = by_row(torch.bmm(by_block(rows), block_keys.mT))
    scores = torch.cat([on_block, _scores(rows, own_keys)], -1)
    if (mask := step.mask(window, query.dtype)) is not None:
        scores.view(n, kv_heads, group, -1).add_(mask)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    out = by_row(torch.bmm(by_block(weights[..., :longest]), block_values))
    return out.baddbmm_(weights[..., longest:], own_values).view(n, 1, heads, size)


def _scores(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Products of few queries with many keys: (b, q, d) and (b, L, d) -> (b, q, L)."""
    if query.dtype is torch.bfloat16 and query.device.type == "cpu":
        # The same numbers with the keys in front: there the CPU's product is up to eight times as fast in bfloat16.
        return torch.bmm(keys, query.mT).mT
    return torch.bmm(query, keys.mT)


AttentionInterface.register(ATTENTION, slot_attention)
