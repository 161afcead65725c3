"""The most memory that tensors take at a time, on any device: what operations make, from when it is made to its end."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Inside, counts the bytes of storages made inside and still alive; `peak` is the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._live = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {id(s) for s in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            if id(storage) not in self._known and id(storage) not in before:
                self._add(storage)
        self.peak = max(self.peak, self._live)
        return out

    def _add(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()

        def gone(_: Any) -> None:
            self._live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self._live += size


def _storages(values: Any) -> list[Any]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
