"""Where the spread of rewards lies: between thoughts or among the answers of one thought.

Source: GRPO-MA (arXiv 2509.24494), section on the variance of the thought advantage. If a thought decides its
answers, the within-thought variance is 0 and more answers per thought add nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phloem.tree import Group

__all__ = ["ThoughtVariance", "rewards_by_thought", "thought_variance"]


@dataclass(frozen=True)
class ThoughtVariance:
    """Of one group, in squared units of reward; NaN where too few values are known.

    Attributes:
        within: mean over thoughts with at least two scored answers of the sample variance (ddof 1) of their rewards.
        between: sample variance (ddof 1) of the thoughts' values. It holds within / M of noise from the answers.
    """

    within: float
    between: float


def rewards_by_thought(group: Group) -> list[list[float]]:
    """The rewards of the scored answers of each thought that has any; rollouts of one segment are no answers."""
    answers: dict[int, list[float]] = {}
    for leaf, reward in zip(group.leaves, group.rewards_R.tolist(), strict=True):
        path = group.path(leaf)
        if len(path) > 1 and not np.isnan(reward):
            answers.setdefault(path[0], []).append(reward)
    return list(answers.values())


def thought_variance(group: Group) -> ThoughtVariance:
    """Within- and between-thought variance of the rewards of a group; only thoughts with scored answers count."""
    answers = rewards_by_thought(group)
    several = [np.var(rewards, ddof=1) for rewards in answers if len(rewards) > 1]
    values = [np.mean(rewards) for rewards in answers]
    return ThoughtVariance(
        within=float(np.mean(several)) if several else float("nan"),
        between=float(np.var(values, ddof=1)) if len(values) > 1 else float("nan"),
    )
