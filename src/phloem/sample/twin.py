"""The model a sampler runs: a second set of modules over the policy's weights.

The twin has its own config, attention and train/eval state, so sampling never touches the policy's: no mode to
restore, gradient checkpointing and the trainer's attention stay as they are. It shares the policy's parameters, or
keeps a copy in another dtype; on a CPU its linear layers keep their weights packed besides (`phloem.sample.packed`).
`sync` refreshes whatever is kept.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from typing import Any

import torch

from phloem.kinds import PhloemError
from phloem.sample.packed import pack_linears, plain_linears
from phloem.sample.sampler import SampleError
from phloem.sample.slots import ATTENTION

__all__ = ["StaleWeights", "Twin", "cache_argument", "fingerprint", "require_unchanged"]

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
        policy: a transformers causal language model or a peft model, not wrapped for several processes.
        dtype: of the twin's weights; None: the policy's parameters themselves.
        decodes: False for a twin that only answers `plain_logits`: nothing is packed.

    Attributes:
        model: the twin.
        copies: whether it keeps weights of its own, in another dtype or packed.
        version: number of calls of `sync`.

    Raises:
        SampleError: a model the sampler's attention cannot serve, by name.
    """

    def __init__(self, policy: Any, dtype: torch.dtype | None = None, decodes: bool = True) -> None:
        _check_served(policy)
        self._decodes = decodes
        self.policy = policy
        self.dtype = dtype
        self.version = 0
        self.cache_argument = cache_argument(policy)
        self._build()

    def _build(self) -> None:
        parameters = list(self.policy.parameters())
        casts = self.dtype is not None and any(p.dtype != self.dtype for p in parameters)
        # Parameters and buffers are handed to deepcopy as already copied: only the modules around them are.
        memo: dict[int, Any] = {id(b): b for b in self.policy.buffers()}
        for p in parameters:
            memo[id(p)] = torch.nn.Parameter(p.detach().to(self.dtype), requires_grad=False) if casts else p
        self.model = copy.deepcopy(self.policy, memo)
        for module in self.model.modules():
            # A forward set on the instance (accelerate does) would run the policy's modules, and hooks that ask for
            # gradients have no place here.
            if "_original_forward" in module.__dict__:
                module.__dict__.pop("forward", None)
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
        self.model.config._attn_implementation = ATTENTION
        self.model.eval()
        self._packed = pack_linears(self.model) if self._decodes else []
        self._casts, self.copies = casts, casts or bool(self._packed)
        self._pairs = list(zip(parameters, self.model.parameters(), strict=True))
        self._seen = fingerprint(parameters)

    def _linked(self) -> bool:
        """Whether the policy still has the parameters this twin was built on."""
        current = list(self.policy.parameters())
        return len(current) == len(self._pairs) and all(a is b for a, (b, _) in zip(current, self._pairs, strict=True))

    def sync(self) -> None:
        """Takes over the policy's weights and raises `version`.

        Raises:
            StaleWeights: the copy still differs from the policy (in the entries looked at).
        """
        if not self._linked():
            self._build()
        if self._casts:
            with torch.no_grad():
                for source, own in self._pairs:
                    own.copy_(source)
            wanted = fingerprint(source.to(own.dtype) for source, own in self._pairs)
            if not torch.equal(wanted, fingerprint(own for _, own in self._pairs)):
                raise StaleWeights("the sampler's copy did not take the policy's weights")
        for layer in self._packed:
            layer.pack()
        if not all(layer.is_current() for layer in self._packed):
            raise StaleWeights("the sampler's packed weights are not the policy's")
        self._seen = fingerprint(source for source, _ in self._pairs)
        self.version += 1

    def check_fresh(self) -> None:
        """Makes sure that sampling now would use the policy's current weights.

        Raises:
            StaleWeights: the policy changed since the last `sync`.
        """
        if self.copies:
            require_unchanged(self._seen, (source for source, _ in self._pairs))
        if not self._linked():
            raise StaleWeights(_CHANGED)

    def plain_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of one row alone, (L, V), by the policy's own attention, plain products and without a cache."""
        self.model.config._attn_implementation = self.policy.config._attn_implementation
        try:
            with plain_linears(self._packed):
                return self.model(input_ids=ids[None], use_cache=False).logits[0]
        finally:
            self.model.config._attn_implementation = ATTENTION


_CHANGED = "the policy's weights changed since the last sync(): call sampler.sync() after an update"


def require_unchanged(seen: torch.Tensor, parameters: Iterable[torch.Tensor]) -> None:
    """Raises StaleWeights: the parameters' fingerprint is not the one seen at the last sync."""
    if not torch.equal(seen, fingerprint(parameters)):
        raise StaleWeights(_CHANGED)


def fingerprint(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """A few entries of each tensor, spread evenly."""
    parts = [p.detach().flatten()[:: max(1, p.numel() // _PROBES)] for p in parameters]
    return torch.cat([part.double().cpu() for part in parts])


def _check_served(model: Any) -> None:
    name = type(model).__name__
    if not hasattr(model, "config"):
        raise SampleError(f"{name} has no config: give the sampler the model itself, not a wrapper around it")
    config = model.config.get_text_config()
    types = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if types:
        raise SampleError(f"{name} has layers of the type {', '.join(sorted(types))}, which the sampler cannot serve")
    if getattr(config, "num_kv_shared_layers", 0):
        raise SampleError(f"{name} shares keys and values between layers, which the sampler cannot serve")
    if getattr(config, "is_encoder_decoder", False):
        raise SampleError(f"{name} is an encoder-decoder model; the sampler serves causal language models")
