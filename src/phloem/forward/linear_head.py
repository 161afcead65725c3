"""The linear head and its log-softmax in tiles of positions x vocabulary.

One tile of logits lives at a time, in a buffer that is used again: a fresh tensor of that size costs a page fault for
every 4 KiB, which on CPUs takes longer than the exponentials. Tiles are wide in positions and narrow in vocabulary,
so that each row of the head is read once and its gradient is written once. The log-softmax is put together from the
tiles' maxima and sums, as in online softmax (arXiv 1805.02867).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch.autograd.function import once_differentiable

__all__ = ["Settings", "Targets", "linear_logprobs"]

# A tile is at least this wide in vocabulary, or as wide as that is: narrower products run slower.
COLUMNS = 1024


@dataclass(frozen=True, eq=False)
class Targets:
    """Which tokens are asked for: `ids_E`, each predicted at position `slot_E` (ascending) of the hidden states."""

    ids_E: Int64[torch.Tensor, " E"]
    slot_E: Int64[torch.Tensor, " E"]


@dataclass(frozen=True, eq=False)
class Settings:
    """How the products are done.

    Attributes:
        scale: of the logits, temperature included.
        dtype: of the matrix products.
        tile: elements of logits held at once.
        keep: elements of logits that may be kept for the backward, which makes the others again.
    """

    scale: float
    dtype: torch.dtype
    tile: int
    keep: int


def linear_logprobs(
    hidden_P: Float[torch.Tensor, "P d"],
    weight: Float[torch.Tensor, "V d"],
    bias: Float[torch.Tensor, " V"] | None,
    targets: Targets,
    settings: Settings,
) -> tuple[Float[torch.Tensor, " E"], Float[torch.Tensor, " P"]]:
    """log softmax(scale * (hidden weight^T + bias)) of the targets and the entropy of every position, in nats."""
    return _LinearLogprobs.apply(hidden_P, weight, bias, targets, settings)


class _LinearLogprobs(torch.autograd.Function):
    """With p the softmax, the gradient of the logits is -p times the sum of a position's incoming gradients, plus the
    incoming gradient at each target: row factors and targets are applied to hidden states and rows of the head, not
    to positions x V.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_P: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: Targets,
        settings: Settings,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(hidden_P.device.type, enabled=False):
            work = _Work(hidden_P, weight, bias, settings)
            largest_P = hidden_P.new_full((len(hidden_P),), torch.finfo(work.wide).min, dtype=work.wide)
            total_P, below_P = torch.zeros_like(largest_P), torch.zeros_like(largest_P)
            at_target_E = torch.zeros_like(targets.ids_E, dtype=work.wide)
            kept: list[torch.Tensor] = []
            for i, ((rows, columns), index) in enumerate(zip(work.tiles, work.targets_by_tile(targets), strict=True)):
                # The first tiles only: a smaller one further on may still find room, but would stand for another.
                room = settings.keep - sum(map(torch.Tensor.numel, kept))
                keep = len(kept) == i and work.size(rows, columns) <= room
                raw = work.product(rows, columns, fresh=keep)
                if keep:
                    kept.append(raw)
                logits = work.scaled(raw, keep)
                at_target_E[index] = logits[targets.slot_E[index] - rows.start, targets.ids_E[index] - columns.start]
                largest, total, below = largest_P[rows], total_P[rows], below_P[rows]
                # Sums of e^x and of x e^x, x being the distance to the largest logit so far; both move with it.
                larger = torch.maximum(largest, logits.amax(-1))
                moved = largest - larger
                fade = moved.exp()
                below.addcmul_(total, moved).mul_(fade)
                total.mul_(fade)
                logits.sub_(larger[:, None])
                spread = torch.exp(logits, out=work.buffer(2, logits.shape, work.wide))
                # A sum, not a product with ones or a dot product: over a vocabulary those are off by 1e-4 in float32.
                total.add_(spread.sum(-1))
                below.add_(spread.mul_(logits).sum(-1))
                largest.copy_(larger)
        log_total_P = total_P.log()
        logprobs_E = at_target_E - largest_P[targets.slot_E] - log_total_P[targets.slot_E]
        entropy_P = log_total_P - below_P / total_P
        ctx.save_for_backward(hidden_P, weight, bias, largest_P, total_P, entropy_P, *kept)
        ctx.rest = targets, settings
        ctx.set_materialize_grads(False)
        return logprobs_E, entropy_P

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # a gradient for each output, by name
        ctx: Any, grad_E: torch.Tensor | None, grad_entropy_P: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None, None]:
        hidden_P, weight, bias, largest_P, total_P, entropy_P, *kept = ctx.saved_tensors
        targets, settings = ctx.rest
        wants = ctx.needs_input_grad[:3]
        with torch.autocast(hidden_P.device.type, enabled=False):
            work = _Work(hidden_P, weight, bias, settings)
            grad_E = torch.zeros_like(targets.ids_E, dtype=work.wide) if grad_E is None else grad_E
            through_P = torch.zeros_like(largest_P).index_add_(0, targets.slot_E, grad_E)
            factor_P = -settings.scale / total_P * (through_P if grad_entropy_P is None else 1)
            grad_hidden, grad_weight, grad_bias = (
                torch.zeros_like(given, dtype=work.wide) if wanted else None
                for given, wanted in zip((hidden_P, weight, bias), wants, strict=True)
            )
            weighted = (work.hidden * factor_P[:, None]).to(settings.dtype)
            for i, (rows, columns) in enumerate(work.tiles):
                logits = work.scaled(kept[i] if i < len(kept) else work.product(rows, columns), i < len(kept))
                logits.sub_(largest_P[rows, None])
                if grad_entropy_P is None:
                    spread = logits.exp_()
                else:
                    # dH / dlogits = -p (log p + H)
                    spread = torch.exp(logits, out=work.buffer(2, logits.shape, work.wide))
                    surprise = logits.add_((entropy_P - total_P.log())[rows, None])
                    spread.mul_(surprise.mul_(grad_entropy_P[rows, None]).add_(through_P[rows, None]))
                if grad_bias is not None:
                    grad_bias[columns] += spread.T @ factor_P[rows]
                narrow = work.narrow(spread)
                if grad_hidden is not None:
                    _add_product(grad_hidden[rows], narrow, work.weight[columns])
                if grad_weight is not None:
                    _add_product(grad_weight[columns], narrow.T, weighted[rows])
            at_target = settings.scale * grad_E[:, None]
            if grad_hidden is not None:
                grad_hidden.mul_(factor_P[:, None])
                grad_hidden.index_add_(0, targets.slot_E, at_target * work.weight[targets.ids_E])
            if grad_weight is not None:
                grad_weight.index_add_(0, targets.ids_E, at_target * work.hidden[targets.slot_E])
            if grad_bias is not None:
                grad_bias.index_add_(0, targets.ids_E, at_target[:, 0])
        return (
            None if grad_hidden is None else grad_hidden.to(hidden_P.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
            None,
            None,
        )


class _Work:
    """Hidden states and head in the dtype of the matrix products, cast once; the tiles, and buffers for one of them."""

    def __init__(
        self, hidden_P: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, settings: Settings
    ) -> None:
        self.settings = settings
        self.wide = torch.float64 if hidden_P.dtype == torch.float64 else torch.float32
        self.hidden = hidden_P.detach().to(settings.dtype)
        self.weight = weight.detach().to(settings.dtype)
        self.bias = None if bias is None else bias.detach().to(settings.dtype)
        positions, vocabulary = len(hidden_P), len(weight)
        self._rows = max(1, min(positions, settings.tile // min(COLUMNS, vocabulary)))
        self._columns = max(1, min(vocabulary, settings.tile // self._rows))
        self.tiles = [(a, b) for a in _slices(positions, self._rows) for b in _slices(vocabulary, self._columns)]
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def size(self, rows: slice, columns: slice) -> int:
        """Elements of a tile."""
        return (rows.stop - rows.start) * (columns.stop - columns.start)

    def buffer(self, which: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of a tile's shape, the same at every call."""
        if (which, dtype) not in self._buffers:
            self._buffers[which, dtype] = self.hidden.new_empty(self._rows * self._columns, dtype=dtype)
        return self._buffers[which, dtype][: shape[0] * shape[1]].view(shape)

    def product(self, rows: slice, columns: slice, fresh: bool = False) -> torch.Tensor:
        """hidden weight^T + bias of a tile, in memory of its own or in buffer 0."""
        hidden, weight = self.hidden[rows], self.weight[columns]
        shape = (len(hidden), len(weight))
        out = hidden.new_empty(shape) if fresh else self.buffer(0, shape, hidden.dtype)
        if self.bias is None:
            return torch.mm(hidden, weight.T, out=out)
        return torch.addmm(self.bias[columns], hidden, weight.T, out=out)

    def scaled(self, product: torch.Tensor, keep: bool) -> torch.Tensor:
        """Logits of a tile in float32 or wider, for the caller to change; in place unless the product is kept."""
        if keep or product.dtype != self.wide:
            product = self.buffer(1, product.shape, self.wide).copy_(product)
        return product if self.settings.scale == 1 else product.mul_(self.settings.scale)

    def narrow(self, tile: torch.Tensor) -> torch.Tensor:
        """A tile in the dtype of the matrix products."""
        if tile.dtype == self.settings.dtype:
            return tile
        return self.buffer(0, tile.shape, self.settings.dtype).copy_(tile)

    def targets_by_tile(self, targets: Targets) -> tuple[torch.Tensor, ...]:
        """Which targets lie in each tile."""
        across = -(-len(self.weight) // self._columns)
        tile_E = targets.slot_E // self._rows * across + targets.ids_E // self._columns
        sizes = torch.bincount(tile_E, minlength=len(self.tiles)).tolist()
        return torch.argsort(tile_E, stable=True).split(sizes)


def _add_product(to: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """to += left @ right; products are summed up in the dtype of `to`."""
    if to.dtype == left.dtype:
        to.addmm_(left, right)
    else:
        to.add_(left @ right)


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
