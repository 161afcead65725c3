"""From prompts to rewarded groups, each process sampling and scoring its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from phloem.rewards.verdict import Verdict
from phloem.sample import ForkPlan, Sampler
from phloem.tasks.task import Example, Task
from phloem.train.policy import Policy
from phloem.train.ranks import Ranks
from phloem.tree import Group

__all__ = ["Collected", "Collector"]


@dataclass(frozen=True, eq=False)
class Collected:
    """Groups with rewards, the same on every process.

    Attributes:
        groups: one per prompt, in the prompts' order.
        verdicts: of each group, one per rollout.
        sample, reward: seconds that the slowest process took for each.
    """

    groups: list[Group]
    verdicts: list[list[Verdict]]
    sample: float
    reward: float


@dataclass(frozen=True, eq=False)
class Collector:
    """Samples and scores."""

    policy: Policy
    task: Task
    sampler: Sampler
    ranks: Ranks

    def __call__(self, examples: Sequence[Example], plan: ForkPlan, keys: Sequence[tuple[int, ...]]) -> Collected:
        """One group per example. What is sampled depends on the keys, not on which process samples it.

        Raises:
            PhloemError: on every process, if sampling or scoring failed on one.
        """
        own = self.ranks.own(len(examples))
        parts = self.ranks.agree(lambda: self._own([examples[i] for i in own], plan, [keys[i] for i in own]))
        groups = self.ranks.in_order([part.groups for part in parts])
        verdicts = self.ranks.in_order([part.verdicts for part in parts])
        return Collected(groups, verdicts, max(p.sample for p in parts), max(p.reward for p in parts))

    def _own(self, examples: Sequence[Example], plan: ForkPlan, keys: Sequence[tuple[int, ...]]) -> Collected:
        begun = perf_counter()
        groups = self.sampler.sample([self.policy.prompt_ids(e) for e in examples], plan, keys)
        sampled = perf_counter()
        verdicts = self._score(groups, examples)
        groups = [g.with_rewards([v.reward for v in own]) for g, own in zip(groups, verdicts, strict=True)]
        return Collected(groups, verdicts, sampled - begun, perf_counter() - sampled)

    def _score(self, groups: Sequence[Group], examples: Sequence[Example]) -> list[list[Verdict]]:
        """One verdict per rollout of each group, from one call of the task's `score`."""
        texts = [self.policy.text(g.completion(r)) for g in groups for r in range(g.group_size)]
        owners = [e for e, g in zip(examples, groups, strict=True) for _ in range(g.group_size)]
        verdicts = iter(self.task.score(texts, owners) if texts else [])
        return [[next(verdicts) for _ in range(g.group_size)] for g in groups]
