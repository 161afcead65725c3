"""Many answers to fixed thoughts of a real model, and what A(th) varies by when M of them are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from phloem.analysis.variance import rewards_by_thought
from phloem.studies.matrix import HEADLINE, checkpoint, config_of
from phloem.studies.study import Bench
from phloem.studies.thought_theory import leading_order

__all__ = ["pool", "resampled"]

PROMPTS, THOUGHTS, ANSWERS = 12, 8, 48


def pool(bench: Bench) -> list[list[list[float]]]:
    """Rewards by prompt, thought and answer, a piece for each prompt; what there is no time for is left out.

    The policy is the shared checkpoint; a bench that does not train makes none, and there is no pool without.
    """
    if not bench.trains and not (bench.work / "checkpoint").exists():
        return []
    number, thoughts, answers = (2, 4, 6) if bench.quick else (PROMPTS, THOUGHTS, ANSWERS)
    settings = {"thoughts": thoughts, "answers": answers}
    machine: list[Any] = []
    found = []
    for i in range(number):

        def one(i: int = i) -> list[list[float]]:
            if not machine:
                machine.append(_Machine(bench))
            return machine[0].rewards(i, thoughts, answers)

        rewards = bench.optional_piece(f"pool-prompt{i}", settings, one)
        if rewards is None:
            break
        found.append(rewards)
    return found


class _Machine:
    """The shared checkpoint with a sampler and the task."""

    def __init__(self, bench: Bench) -> None:
        from phloem import tasks
        from phloem.sample import HFSampler
        from phloem.train.policy import Policy
        from phloem.train.ranks import Ranks
        from phloem.train.rollouts import Collector

        cell, model = HEADLINE[2], checkpoint(bench)
        if bench.quick:
            from phloem.studies.tiny import tiny_config, tiny_task

            self.config = tiny_config(cell, model, bench.work)
            self.task: Any = tiny_task()
        else:
            self.config = config_of(cell, model, bench.work)
            self.task = tasks.get(self.config.task, 0)
        policy = Policy.load(self.config, lambda line: None)
        sampler = HFSampler(policy.model, policy.tokenizer, self.config.sample, eos_ids=policy.end_ids, seed=0)
        self.collect = Collector(policy, self.task, sampler, Ranks.join())

    def rewards(self, i: int, thoughts: int, answers: int) -> list[list[float]]:
        """Rewards of the answers of each thought of training example i; thoughts that were cut off have none."""
        from phloem.sample import ForkPlan

        plan = ForkPlan.from_config(replace(self.config.sample, thoughts=thoughts, answers=answers))
        example = self.task.train[i % len(self.task.train)]
        return rewards_by_thought(self.collect([example], plan, [(7, i)]).groups[0])


def resampled(prompts: Sequence[Sequence[Sequence[float]]], draws: int = 2000) -> dict[str, Any] | None:
    """Variance of A(th) over draws of M answers from the pools, and the formula with the pools' means and variances.

    Prompts whose thoughts have equal values in the pool are left out of the comparison and counted. None: there is no
    prompt with two thoughts of several answers.
    """
    prompts = [thoughts for thoughts in prompts if len(thoughts) > 1 and all(len(answers) > 1 for answers in thoughts)]
    if not prompts:
        return None
    rng = np.random.default_rng(0)
    width = max(len(thoughts) for thoughts in prompts)
    shapes = []
    spread = [t for t in prompts if len(t) == width and np.ptp([np.mean(a) for a in t]) > 0.02]
    for K in sorted({max(2, width // 2), width}):
        for M in (1, 2, 4, 8, 16):
            measured, predicted = [], []
            for thoughts in spread:
                chosen = thoughts[:K]
                v = np.array([np.mean(a) for a in chosen])
                if np.ptp(v) <= 0.02:
                    continue
                noise = np.array([np.var(a) for a in chosen])
                values = np.stack([rng.choice(a, (draws, M)).mean(1) for a in chosen], axis=1)
                centred = values - values.mean(1, keepdims=True)
                std = centred.std(1, keepdims=True)
                advantage = np.divide(centred, std, out=np.zeros_like(centred), where=std > 1e-12)
                measured.append(advantage.var(0).mean())
                predicted.append(leading_order(v, noise, M).mean())
            if measured:
                shapes.append(_row(K, M, measured, predicted))
    within, between = _variances(prompts)
    return {
        "shapes": shapes,
        "thoughts": width,
        "prompts": len(spread),
        "prompts_left": len(prompts) - len(spread),
        "all_prompts": len(prompts),
        "within": within,
        "between": between,
    }


def _row(K: int, M: int, measured: list[float], predicted: list[float]) -> Mapping[str, Any]:
    return {"K": K, "M": M, "measured": float(np.median(measured)), "predicted": float(np.median(predicted))}


def _variances(prompts: Sequence[Sequence[Sequence[float]]]) -> tuple[float, float]:
    """Mean over prompts of the variance within thoughts and of that between their values."""
    within = [np.mean([np.var(a, ddof=1) for a in thoughts]) for thoughts in prompts]
    between = [np.var([np.mean(a) for a in thoughts], ddof=1) for thoughts in prompts]
    return float(np.mean(within)), float(np.mean(between))
