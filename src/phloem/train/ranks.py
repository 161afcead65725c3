"""The processes of a run: who shares what, and how they stay of one mind.

Every process holds the whole step: all groups with their rewards, hence the same credit, totals and metrics. What is
shared out is the work: which prompts a process samples, and which trees it trains.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import nn

from phloem.kinds import ConfigError, PhloemError

__all__ = ["ALONE", "Ranks"]

T = TypeVar("T")

BUCKET = 2**25
"""Elements of gradients added up over the processes in one go."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run.

    Attributes:
        rank: its number, from 0.
        size: how many there are.
        sharded: weights, gradients and AdamW's state are spread over them (FSDP2), instead of whole on each.
    """

    rank: int = 0
    size: int = 1
    sharded: bool = False

    @classmethod
    def join(cls) -> Ranks:
        """The processes that a launcher (`accelerate launch`, `torchrun`) started, connected; else this one alone.

        Raises:
            ConfigError: the launcher was asked for a kind of parallelism that is not served.
        """
        for name in ("DEEPSPEED", "MEGATRON_LM"):
            if _asked(f"ACCELERATE_USE_{name}"):
                raise ConfigError(f"the launcher asks for {name}, which is not served: launch with DDP or FSDP2")
        if _asked("ACCELERATE_USE_FSDP") and os.environ.get("FSDP_VERSION", "1") != "2":
            raise ConfigError("the launcher asks for FSDP of version 1: launch with --fsdp_version 2")
        state = PartialState(cpu=not torch.accelerator.is_available())  # on CPUs accelerate connects only when told
        return cls(state.process_index, state.num_processes, state.num_processes > 1 and _asked("ACCELERATE_USE_FSDP"))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def own(self, count: int) -> range:
        """The indices below `count` that are this process's to work on."""
        return range(self.rank, count, self.size)

    def gather(self, value: Any) -> list[Any]:
        """The value of every process, in their order, on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def agree(self, work: Callable[[], T]) -> list[T]:
        """Does the work on every process and returns all results on each.

        Raises:
            PhloemError: on every process, if the work raised one on any: none is left waiting for another.
        """
        if self.size == 1:
            return [work()]
        result, error = None, None
        try:
            result = work()
        except PhloemError as raised:
            error = raised
        outcomes = self.gather((result, None if error is None else str(error)))
        if error is not None:
            raise error
        for rank, (_, message) in enumerate(outcomes):
            if message is not None:
                raise PhloemError(f"process {rank}: {message}")
        return [outcome for outcome, _ in outcomes]

    def from_first(self, work: Callable[[], T]) -> T:
        """Does the work on the first process and returns its result on all; raises as `agree` does."""
        return cast(T, self.agree(lambda: work() if self.first else None)[0])

    def shares(self, costs: Sequence[float]) -> list[list[int]]:
        """Distributes work over the processes by its costs: the dearest piece first, each to whoever has least so far.

        Returns:
            For each process the indices of its pieces, ascending; all of them for one process alone.
        """
        shares: list[list[int]] = [[] for _ in range(self.size)]
        load = [0.0] * self.size
        for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            rank = load.index(min(load))
            shares[rank].append(i)
            load[rank] += costs[i]
        return [sorted(share) for share in shares]

    def in_order(self, parts: Sequence[Sequence[Any]]) -> list[Any]:
        """What each process made of its `own` indices, put back in order."""
        found: list[Any] = [None] * sum(len(part) for part in parts)
        for rank, part in enumerate(parts):
            found[rank :: self.size] = part
        return found

    def require_equal(self, what: str, value: Any) -> None:
        """Raises PhloemError: a process has another value than the first."""
        values = self.gather(value)
        odd = [rank for rank, other in enumerate(values) if other != values[0]]
        if odd:
            raise PhloemError(f"process {odd[0]} has other {what} than process 0: give every process the same")

    @torch.no_grad()
    def add_up_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Adds the gradients of all processes; where one did not use a parameter it counts as 0."""
        if self.size == 1:
            return
        used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int64, device=parameters[0].device)
        self.add_up([used])
        for parameter, users in zip(parameters, used.tolist(), strict=True):
            if users and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.add_up(p.grad for p in parameters if p.grad is not None)

    @torch.no_grad()
    def add_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replaces tensors by their sums over the processes; the same bits on each of them."""
        if self.size == 1:
            return
        bucket: list[torch.Tensor] = []
        for tensor in tensors:
            if bucket and (sum(t.numel() for t in bucket) + tensor.numel() > BUCKET or tensor.dtype != bucket[0].dtype):
                _add_up(bucket)
                bucket = []
            bucket.append(tensor)
        if bucket:
            _add_up(bucket)


ALONE = Ranks()
"""A run of one process."""


def _asked(name: str) -> bool:
    """Whether `accelerate launch` has set a flag."""
    return os.environ.get(name, "false").lower() in ("1", "true")


def _add_up(bucket: list[torch.Tensor]) -> None:
    flat = torch.cat([tensor.flatten() for tensor in bucket])
    dist.all_reduce(flat)
    for tensor, total in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
        tensor.copy_(total.view_as(tensor))
