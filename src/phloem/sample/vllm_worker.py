"""What runs inside vLLM's worker: taking over pushed weights.

vLLM mixes this class into its worker (`--worker-extension-cls phloem.sample.vllm_worker.WeightReceiver`), where
`self.model_runner` is vLLM's. Nothing of vLLM is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = ["EXTENSION", "WeightReceiver"]

EXTENSION = "phloem.sample.vllm_worker.WeightReceiver"


class WeightReceiver:
    """Methods that Phloem calls through vLLM's `collective_rpc`."""

    model_runner: Any

    def receive_weights(self, source: str | Iterable[tuple[str, torch.Tensor]]) -> None:
        """Loads weights under their checkpoint names, from a folder of safetensors files or as they are.

        vLLM's own reload is used, which packs matrices again for the kernels that want them packed. It skips a head
        that is tied to the embedding, whose packed copy (on CPUs) would stay the old one: such layers are packed once
        more.
        """
        tensors = _read(Path(source)) if isinstance(source, str) else source
        self.model_runner.reload_weights(weights_iterator=tensors)
        for layer in _tied(self.model_runner.get_model()):
            layer.quant_method.process_weights_after_loading(layer)


def _read(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors.torch import load_file

    for file in sorted(folder.glob("*.safetensors")):
        yield from load_file(file).items()


def _tied(model: torch.nn.Module) -> Iterator[Any]:
    """Layers whose weight is another layer's, met before."""
    seen: set[int] = set()
    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.numel() and getattr(layer, "quant_method", None) is not None:
            if weight.data_ptr() in seen:
                yield layer
            seen.add(weight.data_ptr())
