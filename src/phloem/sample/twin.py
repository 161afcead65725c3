"""The model a sampler runs: a second set of modules over the policy's weights.

The twin has its own config, attention and train/eval state, so sampling never touches the policy's: no mode to
restore, gradient checkpointing and the trainer's attention stay as they are. It shares the policy's parameters, or
keeps a copy in another dtype that `sync` refreshes.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

from phloem.kinds import PhloemError
from phloem.sample.sampler import SampleError
from phloem.sample.slots import ATTENTION

__all__ = ["StaleWeights", "Twin", "cache_argument"]

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_PROBES = 64
"""Entries of each parameter looked at to see whether it has changed."""


class StaleWeights(PhloemError, RuntimeError):
    """The policy was updated and the sampler still holds the weights from before."""


def cache_argument(model: Any) -> str:
    """The name under which the model's forward takes a cache: `cache`, or `past_key_values` before transformers 5.24.

    Raises:
        SampleError: a model without a key-value cache.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    parameters = inspect.signature(type(base).forward).parameters
    for name in ("cache", "past_key_values"):
        if name in parameters:
            return name
    raise SampleError(f"{type(base).__name__} takes no key-value cache: it cannot be sampled token by token")


class Twin:
    """An eval-mode model on a policy's weights.

    Args:
        model: a transformers causal language model or a peft model, not wrapped for several processes.
        dtype: of the twin's weights; None: the policy's parameters themselves.

    Raises:
        SampleError: a model the sampler's attention cannot serve, by name.
    """

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        _check_served(model)
        self.source: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
        self.copies = dtype is not None and any(p.dtype != dtype for p in self.source.values())
        # Parameters and buffers are handed to deepcopy as already copied: only the modules around them are.
        memo: dict[int, Any] = {id(b): b for b in model.buffers()}
        for p in self.source.values():
            memo[id(p)] = torch.nn.Parameter(p.detach().to(dtype), requires_grad=False) if self.copies else p
        self.model = copy.deepcopy(model, memo)
        self._unwrap()
        self.model.config._attn_implementation = ATTENTION
        self.model.eval()
        self.version = 0
        self.cache_argument = cache_argument(model)
        self._seen = self._fingerprint()

    def _unwrap(self) -> None:
        """Undoes what was set on the module instances themselves: a wrapped forward would run the policy's modules,
        and hooks that ask for gradients have no place here."""
        for module in self.model.modules():
            if "_original_forward" in module.__dict__:
                module.__dict__.pop("forward", None)
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()

    def _fingerprint(self) -> torch.Tensor:
        parts = [p.detach().flatten()[:: max(1, p.numel() // _PROBES)] for p in self.source.values()]
        return torch.cat([part.double().cpu() for part in parts])

    def sync(self) -> None:
        """Takes over the policy's weights and raises `version`.

        Raises:
            StaleWeights: the copy still differs from the policy (in the entries looked at).
        """
        if self.copies:
            own = dict(self.model.named_parameters())
            with torch.no_grad():
                for name, p in self.source.items():
                    own[name].copy_(p)
            for name, p in self.source.items():
                stride = max(1, p.numel() // _PROBES)
                if not torch.equal(own[name].flatten()[::stride], p.detach().flatten()[::stride].to(own[name].dtype)):
                    raise StaleWeights(f"the sampler's copy of {name} did not take the policy's values")
        self._seen = self._fingerprint()
        self.version += 1

    def check_fresh(self) -> None:
        """Raises:
        StaleWeights: the twin keeps a copy and the policy has changed since the last `sync`.
        """
        if self.copies and not torch.equal(self._seen, self._fingerprint()):
            raise StaleWeights(
                "the policy's weights changed since the last sync(): call sampler.sync() after an update"
            )


def _check_served(model: Any) -> None:
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    name = type(model).__name__
    types = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if types:
        raise SampleError(f"{name} has layers of the type {', '.join(sorted(types))}, which the sampler cannot serve")
    if getattr(config, "num_kv_shared_layers", 0):
        raise SampleError(f"{name} shares keys and values between layers, which the sampler cannot serve")
    if getattr(config, "is_encoder_decoder", False):
        raise SampleError(f"{name} is an encoder-decoder model; the sampler serves causal language models")
