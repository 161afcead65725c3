"""Sampling held-out prompts during a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from phloem.evaluate.held_out import HeldOut
from phloem.sample import ForkPlan
from phloem.train.completions import completion_rows
from phloem.train.folder import RunFolder
from phloem.train.rollouts import Collector
from phloem.train.view import View
from phloem.tree import Finish

__all__ = ["Evaluator"]

CHUNK = 64
"""Prompts sampled between two movements of the progress bar."""


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Scores the policy on the first held-out prompts, always with the same random numbers for the same prompt."""

    collect: Collector
    folder: RunFolder
    view: View
    key: int

    @cached_property
    def constant_baseline(self) -> float | None:
        """Mean held-out reward of the commonest gold answer; scored once a run. None without held-out examples."""
        task = self.collect.task
        return task.constant_baseline().reward if task.held_out else None

    def __call__(self, step: int, prompts: int | None, title: str) -> HeldOut | None:
        """Samples `evaluation.samples` plain rollouts for each of so many prompts (None: all) and logs the figures.

        None for 0 prompts.
        """
        config = self.collect.policy.config
        examples = self.collect.task.held_out[:prompts]
        if not examples:
            return None
        self.view.phase(title, len(examples))
        plan = ForkPlan.plain(config.evaluation.samples, config.sample.max_completion_tokens)
        rewards, truncated, shown = [], [], []
        for start in range(0, len(examples), CHUNK):
            part = examples[start : start + CHUNK]
            keys = [(self.key, i) for i in range(start, start + len(part))]
            found = self.collect(part, plan, keys)
            rewards += [verdict.reward for own in found.verdicts for verdict in own]
            truncated += [segment.finish is Finish.LENGTH for g in found.groups for segment in g.segments]
            wanted = config.evaluation.shown - len(shown)
            shown += completion_rows(found.groups, found.verdicts, self.collect.policy.raw_text, wanted)
            self.view.advance(start + len(part))
        result = HeldOut(
            ids=tuple(e.id for e in examples),
            rewards_Bn=np.array(rewards, dtype=np.float64).reshape(len(examples), -1),
            truncated=float(np.mean(truncated)),
        )
        self.folder.metrics(
            {
                "kind": "evaluation",
                "step": step,
                "reward": result.mean,
                "standard_error": result.standard_error,
                "truncated": result.truncated,
                "prompts": len(examples),
                "samples": config.evaluation.samples,
                "constant_baseline": self.constant_baseline,
            }
        )
        self.folder.completions(step, title, shown)
        self.view.say(f"{title}: mean reward {result.mean:.3f} ± {1.96 * result.standard_error:.3f} at step {step}")
        return result
