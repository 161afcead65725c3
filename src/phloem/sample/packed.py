"""Linear layers whose weights are laid out once for the CPU's matrix kernels.

A plain `linear` on the CPU works on the weight as it lies in memory, or lays it out anew at every call. Decoding calls
it with few rows, where that costs as much as the product itself. Here oneDNN's own layout is kept from one update of
the weights to the next: for 8 to 64 rows the products take about half the time. A row's result is then also the same,
bit for bit, whatever other rows stand in the batch.

Layers that take the same input are one product: queries, keys and values; the two halves of a gated MLP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["PackedLinear", "Product", "pack_linears", "plain_linears"]

_PARTNERS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of a module's linear layers that are all called with the same tensor."""


class Product:
    """The product of one input with the weights of one or more layers, which are kept in oneDNN's layout.

    The first layer asked computes it; the others take their columns of it, if they are asked with the same tensor.

    Args:
        layers: with the same number of inputs, all with a bias or all without one.
    """

    def __init__(self, layers: Sequence[PackedLinear]) -> None:
        self.layers = tuple(layers)
        self._input: torch.Tensor | None = None
        self._columns: dict[PackedLinear, torch.Tensor] = {}
        self.pack()

    def pack(self) -> None:
        """Copies the weights as they are now."""
        biases = [layer.bias.detach() for layer in self.layers if layer.bias is not None]
        weights = [layer.weight.detach() for layer in self.layers]
        alone = len(weights) == 1
        self.bias = (biases[0] if alone else torch.cat(biases)) if biases else None
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weights[0] if alone else torch.cat(weights), None)

    @torch.inference_mode()
    def is_current(self) -> bool:
        """Whether the packed weights are the layers', in one column: the product with a unit vector is exact."""
        first = self.layers[0]
        unit = torch.zeros(1, first.in_features, dtype=first.weight.dtype)
        unit[0, first.in_features // 2] = 1
        packed = [layer(unit) for layer in self.layers]
        with plain_linears([self]):
            return all(torch.equal(layer(unit), found) for layer, found in zip(self.layers, packed, strict=True))

    def of(self, layer: PackedLinear, input: torch.Tensor) -> torch.Tensor:
        """The layer's columns; each is handed out once, and nothing is kept when all have been."""
        if len(self.layers) == 1:
            return self._compute(input)
        if input is not self._input or layer not in self._columns:
            columns = self._compute(input).split([layer.out_features for layer in self.layers], -1)
            self._input, self._columns = input, dict(zip(self.layers, columns, strict=True))
        found = self._columns.pop(layer)
        if not self._columns:
            self._input = None
        return found

    def _compute(self, input: torch.Tensor) -> torch.Tensor:
        # A single row may be summed in another order than rows in company: it is given some.
        alone = input.numel() == input.shape[-1]
        rows = input.reshape(1, -1).expand(2, -1) if alone else input
        found = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return found[0].view(*input.shape[:-1], -1) if alone else found


class PackedLinear(nn.Linear):
    """A linear layer that computes by `product`; None: with its weight."""

    product: Product | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) if self.product is None else self.product.of(self, input)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN serves products with this weight here."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32


def pack_linears(model: nn.Module) -> list[Product]:
    """Turns the linear layers of a model, in place, into packed ones where that can be; returns their products."""
    for module in model.modules():
        if type(module) is nn.Linear and can_pack(module.weight):
            module.__class__ = PackedLinear
            assert isinstance(module, PackedLinear)
            module.product = None
    products = []
    for module in model.modules():  # parents come before their layers
        named: list[list[Any]] = [[getattr(module, name, None) for name in names] for names in _PARTNERS]
        for layers in [*named, [module]]:
            kinds = {_kind(layer) for layer in layers}
            if len(kinds) == 1 and None not in kinds:
                products.append(Product(layers))
                for layer in layers:
                    layer.product = products[-1]
    return products


def _kind(layer: object) -> tuple[int, torch.dtype, bool] | None:
    """What layers of one product have in common; None for what is no packed layer (an adapter around one, say)."""
    if not isinstance(layer, PackedLinear) or layer.product is not None:
        return None
    return layer.in_features, layer.weight.dtype, layer.bias is None


@contextmanager
def plain_linears(products: Sequence[Product]) -> Iterator[None]:
    """Inside, the layers of these products compute with their weights as they lie."""
    for product in products:
        for layer in product.layers:
            layer.product = None
    try:
        yield
    finally:
        for product in products:
            for layer in product.layers:
                layer.product = product
