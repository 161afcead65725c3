"""Seconds, memory and the machine: what the benchmarks measure with."""

from __future__ import annotations

import json
import os
import platform
import weakref
from collections.abc import Callable, Iterable, Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter, process_time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["RESULTS", "LiveMemory", "interval", "load", "machine", "merge_rows", "peak_resident", "seconds"]

RESULTS = Path(__file__).parent / "results"
# Student's t at 97.5 % by degrees of freedom; beyond the table the last holds, which errs on the wide side.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 14: 2.14, 19: 2.09}


def machine() -> str:
    """Processor, threads and versions, in words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {torch.get_num_threads()} threads, {platform.system()}, torch {torch.__version__}"


def seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall-clock seconds, and processor seconds of this process (all threads)."""
    wall, cpu = perf_counter(), process_time()
    work()
    return perf_counter() - wall, process_time() - cpu


def interval(ratios: Sequence[float]) -> list[float] | None:
    """95 % interval of the geometric mean of paired ratios (Student's t on their logarithms); None of a single one."""
    logs = [log(ratio) for ratio in ratios]
    if len(logs) < 2:
        return None
    quantile = STUDENT[max(df for df in STUDENT if df <= len(logs) - 1)]
    half = quantile * stdev(logs) / sqrt(len(logs))
    return [round(exp(fmean(logs) + side * half), 4) for side in (-1, 1)]


class LiveMemory(TorchDispatchMode):
    """Follows the bytes of all tensors made inside, from when they are made to when they are freed.

    What existed before does not count, nor do copies of `parameters` in another type. Kernels' own scratch memory is
    not seen; `peak_resident` is the check for that.
    """

    def __init__(self, parameters: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._weights = {id(p.untyped_storage()) for p in parameters}
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._number: dict[int, int] = {}
        self._events: list[tuple[int, int]] = []  # (which storage, bytes made or, below 0, freed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        copied = func is torch.ops.aten._to_copy.default and given & self._weights
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and not copied:
                storage = tensor.untyped_storage()
                if id(storage) not in given and id(storage) not in self._alive:
                    self._add(storage)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size, number = id(storage), storage.nbytes(), len(self._events)

        def gone(_: object) -> None:
            self._events.append((number, -size))
            del self._alive[key]

        self._alive[key], self._number[key] = weakref.ref(storage, gone), number
        self._events.append((number, size))

    def peak(self, without: Iterable[torch.Tensor] = ()) -> int:
        """The most bytes that were alive at a time; `without` some tensors that still are (gradients)."""
        left_out = {self._number.get(id(t.untyped_storage())) for t in without}
        live = most = 0
        for number, size in self._events:
            live += 0 if number in left_out else size
            most = max(most, live)
        return most


def peak_resident(work: Callable[[], Any]) -> int | None:
    """Bytes by which the process grew at most while `work` ran; None where the system does not say."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        reset.write_text("5")
    except OSError:
        return None

    def read(name: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return 1024 * int(line.split()[1])

    before = read("VmRSS:")
    work()
    return max(read("VmHWM:") - before, 0)


def merge_rows(path: Path, rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> None:
    """Writes rows into a JSON list, each in place of the one with the same values of `keys`."""
    old = json.loads(path.read_text("utf-8")) if path.exists() else []
    fresh = {tuple(row[key] for key in keys) for row in rows}
    kept = [row for row in old if tuple(row.get(key) for key in keys) not in fresh]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*kept, *rows], indent=1) + "\n", encoding="utf-8")


def load() -> float:
    """Processes that wanted a core over the last minute."""
    return round(os.getloadavg()[0], 1)
