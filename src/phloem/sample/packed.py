"""Linear layers whose weights are laid out once for the CPU's matrix kernels.

A plain `linear` on the CPU works on the weight as it lies in memory, or lays it out anew at every call. Decoding calls
it with few rows, where that costs as much as the product itself. Here oneDNN's own layout is kept from one update of
the weights to the next: for 8 to 64 rows the products take about half the time. A row's result is then also the same,
bit for bit, whatever other rows stand in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["PackedLinear", "pack_linears", "plain_linears"]


class PackedLinear(nn.Linear):
    """A linear layer that computes with `packed`, a copy of its weight in oneDNN's layout; None: with the weight."""

    packed: torch.Tensor | None

    def pack(self) -> None:
        """Copies the weight as it is now."""
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)

    @torch.inference_mode()
    def is_current(self) -> bool:
        """Whether the packed weight is the weight, in one column of it: the product with a unit vector is exact."""
        unit = torch.zeros(1, self.in_features, dtype=self.weight.dtype)
        unit[0, self.in_features // 2] = 1
        with plain_linears([self]):
            plain = self(unit)
        return torch.equal(self(unit), plain)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.packed is None:
            return super().forward(input)
        return torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN serves products with this weight here."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32


def pack_linears(model: nn.Module) -> list[PackedLinear]:
    """Turns the linear layers of a model, in place, into packed ones where that can be; returns those."""
    packed = []
    for module in model.modules():
        if type(module) is nn.Linear and can_pack(module.weight):
            module.__class__ = PackedLinear
            assert isinstance(module, PackedLinear)
            module.pack()
            packed.append(module)
    return packed


@contextmanager
def plain_linears(layers: list[PackedLinear]) -> Iterator[None]:
    """Inside, the layers compute with their weights as they lie."""
    kept = [layer.packed for layer in layers]
    for layer in layers:
        layer.packed = None
    try:
        yield
    finally:
        for layer, packed in zip(layers, kept, strict=True):
            layer.packed = packed
