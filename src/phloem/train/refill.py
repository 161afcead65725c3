"""Dynamic sampling (DAPO, arXiv 2503.14476, equation 11): groups without a spread of rewards make room for others.

The paper samples until the batch is full; here the rounds are bounded, and what was thrown away is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from phloem.credit import Credit, assign
from phloem.credit.advantages import is_flat, rounding
from phloem.rewards.verdict import Verdict, tally
from phloem.tasks.task import Example
from phloem.train.folder import group_record
from phloem.tree import Group

__all__ = ["Drawn", "records", "sampled_metrics", "with_spread"]


@dataclass(frozen=True, eq=False)
class Drawn:
    """Groups with their rewards as they train, the examples they were sampled for, and the task's verdicts.

    Attributes:
        sample, reward: seconds spent on each.
    """

    examples: list[Example] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    verdicts: list[list[Verdict]] = field(default_factory=list)
    sample: float = 0.0
    reward: float = 0.0


def with_spread(draw: Callable[[int, int], Drawn], count: int, rounds: int) -> tuple[Drawn, Drawn]:
    """`count` groups, and those that were thrown away for having no spread.

    Args:
        draw: `draw(n, first)` samples the next n prompts; `first` groups were sampled before in this step.
        count: groups wanted.
        rounds: how often groups without a spread are replaced; those of the last round stay as they are.
    """
    kept, replaced, sampled = draw(count, 0), Drawn(), count
    for _ in range(rounds):
        flat = [i for i, group in enumerate(kept.groups) if has_no_spread(group)]
        if not flat:
            break
        fresh = draw(len(flat), sampled)
        sampled += len(flat)
        kept, replaced = _exchanged(kept, replaced, fresh, flat)
    return kept, replaced


def _exchanged(kept: Drawn, replaced: Drawn, fresh: Drawn, places: list[int]) -> tuple[Drawn, Drawn]:
    def parts(name: str) -> tuple[list[Any], list[Any]]:
        stays, out = list(getattr(kept, name)), list(getattr(replaced, name))
        for place, new in zip(places, getattr(fresh, name), strict=True):
            out.append(stays[place])
            stays[place] = new
        return stays, out

    (examples, old_examples), (groups, old_groups), (verdicts, old_verdicts) = map(
        parts, ("examples", "groups", "verdicts")
    )
    seconds = kept.sample + fresh.sample, kept.reward + fresh.reward
    return Drawn(examples, groups, verdicts, *seconds), Drawn(old_examples, old_groups, old_verdicts)


def has_no_spread(group: Group) -> bool:
    """Whether the scored rewards are equal up to float32 rounding, or fewer than two."""
    rewards = group.rewards_R[~np.isnan(group.rewards_R)]
    return len(rewards) < 2 or is_flat(rewards, rounding(rewards))


def records(
    step: int, kept: Drawn, credits: Sequence[Credit], replaced: Drawn, decode: Callable[..., str]
) -> Iterator[dict[str, Any]]:
    """A step's lines of rollouts.jsonl: the groups of the batch with their credit, then those thrown away."""
    for example, group, verdicts, given in zip(kept.examples, kept.groups, kept.verdicts, credits, strict=True):
        yield group_record(step, example, group, given, verdicts, decode)
    for example, group, verdicts in zip(replaced.examples, replaced.groups, replaced.verdicts, strict=True):
        given = assign(group, credits[0].rule)
        yield {**group_record(step, example, group, given, verdicts, decode), "replaced": True}


def sampled_metrics(kept: Drawn, replaced: Drawn) -> dict[str, float]:
    """Figures of everything that was sampled in a step, replaced groups included (docs/metrics.md)."""
    groups = [*kept.groups, *replaced.groups]
    rewards = np.concatenate([group.rewards_R for group in groups])
    scored = rewards[~np.isnan(rewards)]
    verdicts = [verdict for own in (*kept.verdicts, *replaced.verdicts) for verdict in own]
    return {
        "sampled/groups": len(groups),
        "sampled/tokens": int(sum(segment.sampled_mask.sum() for group in groups for segment in group.segments)),
        "sampled/reward": float(scored.mean()) if len(scored) else float("nan"),
        "sampled/zero_spread": float(np.mean([has_no_spread(group) for group in groups])),
        **{f"verdict/{name}": value for name, value in tally(verdicts).items()},
    }
