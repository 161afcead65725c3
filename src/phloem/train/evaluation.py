"""Sampling held-out prompts during a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from phloem.evaluate.held_out import HeldOut
from phloem.rewards.verdict import Verdict
from phloem.sample import ForkPlan, Sampler
from phloem.tasks.task import Example, Task
from phloem.train.folder import RunFolder
from phloem.train.policy import Policy
from phloem.train.view import View
from phloem.tree import Finish, Group

__all__ = ["Evaluator", "score_groups"]

CHUNK = 64
"""Prompts sampled between two movements of the progress bar."""


def score_groups(
    policy: Policy, task: Task, groups: Sequence[Group], examples: Sequence[Example]
) -> list[list[Verdict]]:
    """One verdict per rollout of each group, from one call of the task's `score`."""
    texts = [policy.text(g.completion(r)) for g in groups for r in range(g.group_size)]
    owners = [e for e, g in zip(examples, groups, strict=True) for _ in range(g.group_size)]
    verdicts = iter(task.score(texts, owners))
    return [[next(verdicts) for _ in range(g.group_size)] for g in groups]


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Scores the policy on the first held-out prompts, always with the same random numbers for the same prompt."""

    policy: Policy
    task: Task
    sampler: Sampler
    folder: RunFolder
    view: View
    key: int

    @cached_property
    def constant_baseline(self) -> float | None:
        """Mean held-out reward of the commonest gold answer; scored once a run. None without held-out examples."""
        return self.task.constant_baseline().reward if self.task.held_out else None

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
            verdicts = score_groups(self.policy, self.task, groups, part)
            rewards += [np.nan if v.reward is None else v.reward for own in verdicts for v in own]
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
                "constant_baseline": self.constant_baseline,
            }
        )
        self.view.say(f"{title}: mean reward {found.mean:.3f} ± {1.96 * found.standard_error:.3f} at step {step}")
        return found
