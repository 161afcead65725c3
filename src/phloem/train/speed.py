"""How near updates come to what sharing and the machine allow; every figure stands in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import torch

from phloem.config import TrainConfig
from phloem.forward.plan import ModelSize, UpdatePlan, plan_update, row_flops, tree_flops, tree_of_shape
from phloem.forward.rate import matmul_rate, rows_rate, synchronise
from phloem.tasks.task import Task
from phloem.train.policy import Policy
from phloem.train.ranks import ALONE, Ranks
from phloem.train.step import Batch
from phloem.tree import PrefixTree

__all__ = ["Speed", "expected_plan"]

PROMPTS = 32
"""Prompts whose lengths are looked at for the expected plan."""


def expected_plan(policy: Policy, task: Task) -> UpdatePlan:
    """How a step would run whose rollouts all use their whole budgets, after prompts of the usual length."""
    sample, optim = policy.config.sample, policy.config.optim
    prompt_length = round(np.median([len(policy.prompt_ids(example)) for example in task.train[:PROMPTS]]))
    tree = tree_of_shape(prompt_length, [(level.fan_out, level.max_tokens) for level in sample.levels])
    trees = [tree] * optim.prompts_per_step
    return plan_update(ModelSize.of(policy.model), trees, policy.engine, optim.pack_tokens)


def matmul_dtype(config: TrainConfig) -> torch.dtype:
    """The dtype in which a run's training forward multiplies matrices."""
    return torch.bfloat16 if config.model.autocast else getattr(torch, config.model.dtype)


class Speed:
    """Times forwards and backwards of a run's updates.

    Attributes:
        peak: measured rate of matrix products in the run's dtype, FLOPs per second.
        rows: measured rate of the rows' forward and backward, FLOPs per second; NaN until it is known.
    """

    def __init__(self, policy: Policy, ranks: Ranks = ALONE) -> None:
        self.policy, self.ranks = policy, ranks
        self.size = ModelSize.of(policy.model)
        self.peak = matmul_rate(policy.device, matmul_dtype(policy.config))
        self.rows = float("nan")
        self._asked = False
        self._seconds, self._updates = 0.0, 0

    def cost(self, tree: PrefixTree) -> float:
        """FLOPs of training a tree."""
        return tree_flops(self.size, [tree])

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around the forward and backward of one update."""
        synchronise(self.policy.device)
        start = perf_counter()
        yield
        synchronise(self.policy.device)
        self._seconds += perf_counter() - start
        self._updates += 1

    def compare_with_rows(self, batch: Batch) -> None:
        """Measures the rows' rate on rollouts of a batch, the first time it is asked, if the run wants it.

        To be called between updates, in the model's training mode: it leaves no gradient behind.
        """
        config = self.policy.config
        if self._asked or not config.run.time_rows or not batch.packs:
            return
        self._asked = True
        groups = [tree.group for part in batch.packs for tree in part.pack.trees]
        budget = config.optim.pack_tokens
        with torch.random.fork_rng():  # a run that goes on measures again, and must draw what it would have drawn
            self.rows = rows_rate(self.policy.model, groups, self.policy, self.size, config.sample.temperature, budget)

    def figures(self, batch: Batch) -> dict[str, float]:
        """Of the updates timed since the last call; NaN where nothing was trained.

        With several processes the time is that of the slowest, and the rates to compare with are those of all: the
        first one's times their number.
        """
        trees = batch.trees
        seconds, updates = max(self.ranks.gather(self._seconds)), self._updates
        self._seconds, self._updates = 0.0, 0
        if not trees or not updates:
            keys = ("flop_ceiling", "ceiling_share", "distinct_per_second", "mfu", "seconds/passes")
            return dict.fromkeys(keys, float("nan"))
        flops = tree_flops(self.size, trees)
        rate = updates * flops / seconds
        return {
            "flop_ceiling": row_flops(self.size, trees) / flops,
            "ceiling_share": rate / (self.ranks.size * self.rows),
            "distinct_per_second": updates * float(np.sum([len(tree) for tree in trees])) / seconds,
            "mfu": rate / (self.ranks.size * self.peak),
            "seconds/passes": seconds,
        }
