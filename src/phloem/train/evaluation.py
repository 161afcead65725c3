"""Sampling held-out prompts during a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phloem.evaluate.held_out import HeldOut
from phloem.sample import ForkPlan, Sampler
from phloem.tasks.task import Task
from phloem.train.folder import RunFolder
from phloem.train.policy import Policy
from phloem.train.view import View
from phloem.tree import Finish

__all__ = ["Evaluator"]

CHUNK = 64
"""Prompts sampled between two movements of the progress bar."""


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Scores the policy on the first held-out prompts, always with the same random numbers for the same prompt."""

    policy: Policy
    task: Task
    sampler: Sampler
    folder: RunFolder
    view: View
    key: int

    def __call__(self, step: int, prompts: int, title: str) -> HeldOut | None:
        """Samples `evaluation.samples` plain rollouts for each prompt and logs the figures; None for 0 prompts."""
        config = self.policy.config
        examples = self.task.held_out[:prompts]
        if not examples:
            return None
        self.view.phase(title, len(examples))
        plan = ForkPlan.plain(config.evaluation.samples, config.sample.max_completion_tokens)
        rewards, truncated = [], []
        for start in range(0, len(examples), CHUNK):
            part = examples[start : start + CHUNK]
            keys = [(self.key, i) for i in range(start, start + len(part))]
            groups = self.sampler.sample([self.policy.prompt_ids(e) for e in part], plan, keys)
            texts = [self.policy.text(g.completion(r)) for g in groups for r in range(g.group_size)]
            owners = [e for e, g in zip(part, groups, strict=True) for _ in range(g.group_size)]
            verdicts = self.task.score(texts, owners)
            rewards += [np.nan if v.reward is None else v.reward for v in verdicts]
            truncated += [segment.finish is Finish.LENGTH for g in groups for segment in g.segments]
            self.view.advance(start + len(part))
        found = HeldOut(
            ids=tuple(e.id for e in examples),
            rewards_Bn=np.array(rewards).reshape(len(examples), -1),
            truncated=float(np.mean(truncated)),
        )
        self.folder.metrics(
            {
                "kind": "evaluation",
                "step": step,
                "reward": found.mean,
                "standard_error": found.standard_error,
                "truncated": found.truncated,
                "prompts": len(examples),
                "samples": config.evaluation.samples,
                "constant_baseline": self.task.constant_baseline().reward,
            }
        )
        self.view.say(f"{title}: mean reward {found.mean:.3f} ± {1.96 * found.standard_error:.3f} at step {step}")
        return found
