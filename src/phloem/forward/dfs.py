"""The depth-first engine: a tree of any size in the memory of one path and one piece, with the same gradient.

The tree is cut into pieces (`pieces.py`), taken in pre-order. On the way down an inner piece runs without gradient and
leaves its keys and values on the path. When all pieces below it are done it runs again, with gradient, and goes
backward from its own loss and from what the pieces below have added up for its keys and values. Pieces that nothing
hangs on run once. The loss is a sum over tokens, so that each piece can go backward as soon as its own logprobs are
known; a position's loss is that of the tokens it predicts.

Kept at a time: keys and values of one path, their gradients (in float32 or wider, added up over all pieces below), and
the activations of one piece. Computed beyond the packed forward and backward: one forward of the inner pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from phloem.forward.attention import pack_arguments
from phloem.forward.blocks import Block
from phloem.forward.features import CannotServe
from phloem.forward.head import CHUNK, Targets, head_logprobs
from phloem.forward.logprobs import Logprobs, checked
from phloem.forward.pack import Pack, PlacedBlock
from phloem.forward.pieces import Piece, cut_into_pieces, runs_above, stored
from phloem.tree.trie import PrefixTree

__all__ = ["Machine", "PieceLoss", "bounded_backward", "bounded_logprobs"]

PieceLoss = Callable[[Int64[Tensor, " e"], Logprobs], Tensor]
"""The loss of some trained tokens, given their indices into `pack.trained_E` and their logprobs: a sum over them."""


class Machine(Protocol):
    """Precision of the forward and how to go backward; a run's policy, or whatever holds the model."""

    def backward(self, loss: Tensor) -> None: ...

    def autocast(self) -> Any: ...


def bounded_logprobs(model: nn.Module, pack: Pack, budget: int, temperature: float = 1.0) -> Logprobs:
    """What `logprobs` gives on a pack of one tree, without gradient, at most `budget` tokens at a time.

    Raises:
        ValueError: as `logprobs`, or a pack of several trees.
    """
    walk = _Walk(model, pack, budget, temperature)
    with torch.no_grad():
        for piece in walk.pieces:
            walk.keep(*walk.forward(_Visit(pack, piece, walk.path)))
    return walk.found


def bounded_backward(
    model: nn.Module, pack: Pack, budget: int, loss: PieceLoss, machine: Machine, temperature: float = 1.0
) -> Logprobs:
    """Adds the gradient of a loss over a pack of one tree to the parameters, at most `budget` tokens at a time.

    Args:
        model: as for `logprobs`; gradient checkpointing must not be reentrant.
        pack: of one tree, on the model's device.
        budget: tokens whose activations are held at once.
        loss: is called once for each trained token, for those of a piece at a time.
        machine: `autocast` is entered around forwards, `backward` takes each piece's scalar, unscaled.
        temperature: of sampling.

    Returns:
        The logprobs and entropies that the losses were taken of, detached.

    Raises:
        CannotServe: reentrant gradient checkpointing.
        ValueError: as `logprobs`, or a pack of several trees.
    """
    walk = _Walk(model, pack, budget, temperature)
    open_pieces: list[tuple[Piece, _Random]] = []

    def close_until(start: int) -> None:
        while open_pieces and open_pieces[-1][0].end <= start:
            walk.train(*open_pieces.pop(), loss, machine)

    for piece in walk.pieces:
        close_until(piece.start)
        if piece.inner:
            open_pieces.append((piece, _Random(pack.tokens_T.device)))
            with torch.no_grad(), machine.autocast():
                walk.body(**pack_arguments(_Visit(pack, piece, walk.path)))
        else:
            walk.train(piece, None, loss, machine)
    close_until(len(pack))
    return walk.found


class _Walk:
    """A model on its way through one tree."""

    def __init__(self, model: nn.Module, pack: Pack, budget: int, temperature: float, chunk: int = CHUNK) -> None:
        self.body, self.head = checked(model, pack, temperature, chunk)
        if len(pack.trees) != 1:
            raise ValueError(f"the depth-first engine takes a pack of one tree, not of {len(pack.trees)}")
        self.pack, self.temperature, self.chunk = pack, temperature, chunk
        tree = pack.trees[0]
        self.pieces = cut_into_pieces(tree, budget)
        self.path = _Path(stored(tree, self.pieces))
        self.order = torch.argsort(pack.slot_E, stable=True)
        self.slot_E = pack.slot_E[self.order]
        empty = torch.zeros(len(pack.trained_E), device=pack.tokens_T.device)
        self.found = Logprobs(empty, empty.clone())

    def forward(self, visit: _Visit) -> tuple[Tensor, Logprobs | None]:
        """Runs a piece; which trained tokens it predicts, and their logprobs (None: it predicts none)."""
        piece = visit.piece
        hidden_T = self.body(**pack_arguments(visit)).last_hidden_state[0]
        bounds = torch.tensor([piece.start, piece.stop], device=hidden_T.device)
        a, b = torch.searchsorted(self.pack.predict_P, bounds).tolist()
        c, d = torch.searchsorted(self.slot_E, torch.tensor([a, b], device=hidden_T.device)).tolist()
        index_E = self.order[c:d]
        if a == b:
            return index_E, None
        slot_E = self.slot_E[c:d] - a
        targets = Targets(self.pack.target_E[index_E], slot_E)
        hidden_P = hidden_T.index_select(0, self.pack.predict_P[a:b] - piece.start)
        logprobs_E, entropy_P = head_logprobs(hidden_P, self.head, targets, self.temperature, self.chunk)
        return index_E, Logprobs(logprobs_E, entropy_P.index_select(0, slot_E))

    def keep(self, index_E: Tensor, found: Logprobs | None) -> None:
        """Puts a piece's values where they belong."""
        if found is not None:
            if self.found.logprobs_E.dtype != found.logprobs_E.dtype:
                wide = found.logprobs_E.dtype
                self.found = Logprobs(self.found.logprobs_E.to(wide), self.found.entropy_E.to(wide))
            self.found.logprobs_E[index_E] = found.logprobs_E.detach()
            self.found.entropy_E[index_E] = found.entropy_E.detach()

    def train(self, piece: Piece, random: _Random | None, loss: PieceLoss, machine: Machine) -> None:
        """Forward and backward of a piece; those below it are done. `random`: of its first run, if there was one."""
        visit = _Visit(self.pack, piece, self.path, train=True)
        with random.again() if random else nullcontext(), machine.autocast():
            index_E, found = self.forward(visit)
        total = self.path.pull(visit)
        if found is not None:
            self.keep(index_E, found)
            total = total + loss(index_E, found)
        if total.requires_grad:
            machine.backward(total)
        self.path.forget(visit)


class _Path:
    """Keys and values of the inner pieces that lead to where the walk is, by depth, and their gradients."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.kept: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        self.grads: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def store(self, layer: nn.Module, depth: int, made: tuple[Tensor, Tensor]) -> None:
        """Writes the keys and values (1, H_kv, n, D) of the tokens from `depth` on."""
        if layer not in self.kept:
            self.kept[layer] = self._like(made, made[0].dtype)
        for kept, own in zip(self.kept[layer], made, strict=True):
            kept[:, :, depth : depth + own.shape[2]] = own

    def above(self, layer: nn.Module, depth: int, train: bool) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `depth` tokens; in training, leaves whose gradients are added up here."""
        key, value = (kept[:, :, :depth].detach() for kept in self.kept[layer])
        if train:
            if layer not in self.grads:
                wide = torch.float64 if key.dtype == torch.float64 else torch.float32
                self.grads[layer] = self._like((key, value), wide)
            for leaf, total in zip((key, value), self.grads[layer], strict=True):
                leaf.requires_grad_().register_post_accumulate_grad_hook(partial(_add_gradient, total))
        return key, value

    def pull(self, visit: _Visit) -> Tensor:
        """A scalar whose gradient with respect to a piece's keys and values is what was added up for them."""
        total = visit.tokens_T.new_zeros((), dtype=torch.float32)
        for layer, made in visit.made.items():
            for own, grads in zip(made, self.grads.get(layer, ()), strict=False):
                total = total + (own * grads[:, :, visit.above : len(visit)].to(own.dtype)).sum()
        return total

    def forget(self, visit: _Visit) -> None:
        """Clears the gradients of a piece that has gone backward."""
        for grads in self.grads.values():
            for total in grads:
                total[:, :, visit.above : len(visit)] = 0

    def _like(self, made: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        key, value = (t.new_zeros((*t.shape[:2], self.length, t.shape[3]), dtype=dtype) for t in made)
        return key, value


def _add_gradient(total: Tensor, leaf: Tensor) -> None:
    assert leaf.grad is not None
    total[:, :, : leaf.shape[2]] += leaf.grad
    leaf.grad = None


@dataclass(eq=False)
class _Visit:
    """One run of a piece: what attention needs to know of it (`pack.Layout`), and its keys and values.

    Attributes:
        made: each layer's own keys and values, kept where the pieces below want gradients for them.
        given: each layer's keys and values of the tokens above, the same when checkpointing recomputes.
    """

    pack: Pack
    piece: Piece
    path: _Path
    train: bool = False
    plans: dict[Any, Any] = field(default_factory=dict)
    made: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)
    given: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def tree(self) -> PrefixTree:
        return self.pack.trees[0]

    @property
    def tokens_T(self) -> Tensor:
        return self.pack.tokens_T[self.piece.start : self.piece.stop]

    @property
    def position_T(self) -> Tensor:
        return self.pack.position_T[self.piece.start : self.piece.stop]

    @property
    def above(self) -> int:
        return int(self.tree.depth_T[self.piece.start])

    def __len__(self) -> int:
        return self.above + len(self.piece)

    def blocks(self, cut: Callable[[PrefixTree], list[Block]]) -> list[PlacedBlock]:
        """The tree's blocks where they meet the piece."""
        placed: list[PlacedBlock] = []
        for block in cut(self.tree):
            start, stop = max(block.start, self.piece.start), min(block.stop, self.piece.stop)
            if start < stop:
                above = block.above if start == block.start else runs_above(self.tree, start)
                own = Block(start, stop, above)
                placed.append((self.tree, own, [self._place(*run) for run in own.runs]))
        return placed

    def _place(self, start: int, stop: int) -> tuple[int, int]:
        """Where a run of the tree lies among the keys: those above the piece are ordered by depth."""
        first = self.piece.start
        place = int(self.tree.depth_T[start]) if start < first else self.above + start - first
        return place, place + stop - start

    def end_and_depth(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """All tokens of a piece lie below all tokens above it."""
        end = np.minimum(self.tree.end_T[self.piece.start : self.piece.stop], self.piece.stop)
        end_K = np.concatenate([np.full(self.above, len(self)), end - self.piece.start + self.above])
        depth = self.tree.depth_T[self.piece.start : self.piece.stop]
        depth_K = np.concatenate([np.arange(self.above), depth])
        return torch.from_numpy(end_K).to(device), torch.from_numpy(depth_K).to(device)

    def exchange(self, layer: nn.Module, key: Tensor, value: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Keeps a layer's keys and values if pieces lie below, and gives those above."""
        if self.train and not torch.is_grad_enabled():
            raise CannotServe(
                "trees over the token budget run depth first, which reentrant gradient checkpointing cannot: enable it "
                "with use_reentrant=False"
            )
        if self.piece.inner and self.train:
            self.made.setdefault(layer, (key, value))
        elif self.piece.inner:
            self.path.store(layer, self.above, (key, value))
        if not self.above:
            return [], []
        if layer not in self.given:
            self.given[layer] = self.path.above(layer, self.above, self.train)
        given_key, given_value = self.given[layer]
        return [given_key], [given_value]


class _Random:
    """The state of the random numbers before a piece's first run, so that its second draws the same dropout."""

    def __init__(self, device: torch.device) -> None:
        self.devices = [device] if device.type == "cuda" else []
        self.cpu = torch.get_rng_state()
        self.states = [torch.cuda.get_rng_state(d) for d in self.devices]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the random numbers are those of then; afterwards they go on as if nothing had been drawn."""
        with torch.random.fork_rng(devices=self.devices):
            torch.set_rng_state(self.cpu)
            for device, state in zip(self.devices, self.states, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
