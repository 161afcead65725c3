"""Packs: several prefix trees laid end to end as torch tensors, ready for one forward and backward.

Nothing of a tree attends outside it, so a pack is only a way to give the matrix products enough rows. The position
that predicts a token is the token's parent; one position at a fork predicts several tokens, and its logits are
needed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Int64
from torch import nn

from phloem.forward.blocks import Block
from phloem.tree.trie import PrefixTree

__all__ = ["Layout", "Pack", "PlacedBlock", "pack", "split_into_packs"]

PlacedBlock = tuple[PrefixTree, Block, list[tuple[int, int]]]
"""A block of a tree, and where the runs of its keys lie among all keys of a layout."""


class Layout(Protocol):
    """What attention needs to know of the tokens it runs on: a pack, or a piece of a tree (`dfs.py`).

    The keys are `above` tokens whose keys and values are given, then the tokens at hand, which are the queries.
    """

    @property
    def plans(self) -> dict[Any, Any]: ...

    @property
    def tokens_T(self) -> Int64[torch.Tensor, " T"]: ...

    @property
    def position_T(self) -> Int64[torch.Tensor, " T"]: ...

    @property
    def above(self) -> int: ...

    def __len__(self) -> int:
        """Number of keys."""
        ...

    def blocks(self, cut: Callable[[PrefixTree], list[Block]]) -> list[PlacedBlock]:
        """What is left of the cut trees' blocks, in the order of the queries."""
        ...

    def end_and_depth(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each key, one past its last descendant among the keys, and its position in the row."""
        ...

    def exchange(
        self, layer: nn.Module, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Takes a layer's keys and values of the tokens at hand, shape (1, H_kv, T, D); gives those above, if any."""
        ...


@dataclass(frozen=True, eq=False)
class Pack:
    """The T tokens of several trees, one tree after the other, each in depth-first pre-order.

    Indices into the pack are those of a tree plus the start of the tree.

    Attributes:
        trees: what was packed, in order.
        tree_start: shape (n_trees + 1,); tree i holds tokens tree_start[i]:tree_start[i + 1].
        tokens_T: token ids.
        position_T: depth in the tree, used as the position id.
        parent_T: index of the token before; -1 for the first token of a tree.
        end_T: one past the last descendant.
        trained_E: the trained tokens (those that at least one rollout sampled), ascending: for each tree in turn,
            `np.flatnonzero(tree.sampled_T)` plus the tree's start.
        predict_P: the positions that predict a trained token, each once, ascending.
        slot_E: which of `predict_P` predicts each trained token.
        plans: what the attention back ends derive from the pack, kept for its other layers.
    """

    trees: tuple[PrefixTree, ...]
    tree_start: Int64[np.ndarray, " n1"]
    tokens_T: Int64[torch.Tensor, " T"]
    position_T: Int64[torch.Tensor, " T"]
    parent_T: Int64[torch.Tensor, " T"]
    end_T: Int64[torch.Tensor, " T"]
    trained_E: Int64[torch.Tensor, " E"]
    predict_P: Int64[torch.Tensor, " P"]
    slot_E: Int64[torch.Tensor, " E"]
    plans: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """Number of tokens, prompts included."""
        return int(self.tree_start[-1])

    @property
    def above(self) -> int:
        """A pack is whole: nothing lies above it."""
        return 0

    def blocks(self, cut: Callable[[PrefixTree], list[Block]]) -> list[PlacedBlock]:
        """The blocks of every tree."""
        return [
            (tree, block, [(int(first) + a, int(first) + b) for a, b in block.runs])
            for first, tree in zip(self.tree_start, self.trees, strict=False)
            for block in cut(tree)
        ]

    def end_and_depth(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """`end_T` and `position_T`."""
        return self.end_T, self.position_T

    def exchange(
        self, layer: nn.Module, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Nothing to keep and nothing to give."""
        return [], []

    @property
    def longest(self) -> int:
        """Tokens of the longest row, its prompt included."""
        return max(int(tree.depth_T.max()) for tree in self.trees) + 1

    @property
    def target_E(self) -> Int64[torch.Tensor, " E"]:
        """Ids of the trained tokens."""
        return self.tokens_T[self.trained_E]

    def to(self, device: torch.device | str) -> Pack:
        """The same pack with its tensors on `device`."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {name: value.to(device) for name, value in tensors.items() if isinstance(value, torch.Tensor)}
        return replace(self, **moved, plans={})


def pack(trees: Iterable[PrefixTree]) -> Pack:
    """Lays trees end to end.

    Raises:
        ValueError: no tree.
    """
    trees = tuple(trees)
    if not trees:
        raise ValueError("a pack needs at least one tree")
    start = np.concatenate([[0], np.cumsum([len(tree) for tree in trees])]).astype(np.int64)

    def joined(arrays: Iterable[np.ndarray], shift: bool = False) -> np.ndarray:
        return np.concatenate([array + shift * first for array, first in zip(arrays, start, strict=False)])

    parent_T = joined((tree.parent_T for tree in trees), shift=True)
    parent_T[start[:-1]] = -1
    trained_E = joined((np.flatnonzero(tree.sampled_T) for tree in trees), shift=True)
    predict_P, slot_E = np.unique(parent_T[trained_E], return_inverse=True)
    arrays = {
        "tokens_T": joined(tree.tokens_T for tree in trees),
        "position_T": joined(tree.depth_T for tree in trees),
        "parent_T": parent_T,
        "end_T": joined((tree.end_T for tree in trees), shift=True),
        "trained_E": trained_E,
        "predict_P": predict_P,
        "slot_E": slot_E,
    }
    tensors: dict[str, Any] = {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}
    return Pack(trees, start, **tensors)


def split_into_packs(trees: Sequence[PrefixTree], max_tokens: int) -> list[list[int]]:
    """Distributes trees over packs of at most `max_tokens` tokens, first fit in the order given.

    No tree is cut here: one that is larger than the budget gets a pack of its own, and runs depth first (`dfs.py`).

    Returns:
        For each pack, the indices of its trees, ascending.

    Raises:
        ValueError: a budget below one token.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; it must be at least 1")
    packs: list[list[int]] = []
    free: list[int] = []
    for i, tree in enumerate(trees):
        fits = next((p for p, room in enumerate(free) if len(tree) <= room), None)
        if fits is None:
            packs.append([i])
            free.append(max_tokens - len(tree))
        else:
            packs[fits].append(i)
            free[fits] -= len(tree)
    return packs
