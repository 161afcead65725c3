"""A policy's weights under the names of its checkpoint, adapters merged.

Adapters are merged into what is pushed, and the policy itself is left alone. An engine's own adapters would be the
other way: they have kernels, ranks and target modules of their own, and a prefix cache keyed by the adapter's name,
which is the same after an update. Merged weights take the path of a full model, and the engine computes what the
trainer's forward computes up to rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from transformers.core_model_loading import revert_weight_conversion

from phloem.sample.sampler import SampleError

__all__ = ["base_model", "checkpoint_tensors"]

_UNMERGED = "it cannot be merged into the pushed weights; use sample.engine hf, or adapters that merge (LoRA)"


def base_model(policy: Any) -> Any:
    """The transformers model inside a peft model, or the model itself."""
    return policy.get_base_model() if hasattr(policy, "get_base_model") else policy


def checkpoint_tensors(policy: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors as `save_pretrained` of the merged model would write them; tied tensors once.

    Tensors of layers without adapters are the policy's own storage: copy them before they are kept.

    Raises:
        SampleError: adapters that cannot be merged, by name.
    """
    for name, adapter in getattr(policy, "peft_config", {}).items():
        if adapter.is_prompt_learning:
            raise SampleError(f"the adapter {name!r} is a {type(adapter).__name__}: {_UNMERGED}")
    model = base_model(policy)
    wrapped = _wrapped(model)
    plain: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if not any(prefix in wrapped for prefix in _prefixes(name)) and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            plain[name] = tensor
    tensors: Iterable[tuple[str, torch.Tensor]] = chain(plain.items(), _merged(wrapped))
    nothing: dict[str, torch.Tensor] = {}
    if revert_weight_conversion(model, nothing) is not nothing:
        # transformers keeps this model under other names than its checkpoint, and needs all weights to go back.
        tensors = revert_weight_conversion(model, dict(tensors)).items()
    yield from tensors


def _prefixes(name: str) -> Iterator[str]:
    """The modules that hold a tensor, innermost first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _wrapped(model: Any) -> dict[str, Any]:
    """The layers that peft wraps, by name; of nested wrappers the outermost."""
    found = {name: module for name, module in model.named_modules() if type(module).__module__.startswith("peft.")}
    return {name: m for name, m in found.items() if not any(prefix in found for prefix in _prefixes(name))}


@torch.no_grad()
def _merged(wrapped: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of wrapped layers as they are without the wrapper; one layer at a time is held in memory."""
    for name, module in wrapped.items():
        if hasattr(module, "merge") and hasattr(module, "get_base_layer"):
            # In float32, so that the sum is rounded once: by the engine, to its own dtype.
            alone = copy.deepcopy(module).float()
            if not alone.merged:
                alone.merge()
            bare = alone.get_base_layer()
        elif hasattr(module, "modules_to_save"):
            bare = module.modules_to_save[module.active_adapters[0]]
        else:
            raise SampleError(f"{name} is a {type(module).__name__} of peft: {_UNMERGED}")
        yield from ((f"{name}.{part}", tensor) for part, tensor in bare.state_dict().items())
