"""What happens to rewards between the task and the credit: overlong shaping and masking, as settings ask for them."""

from __future__ import annotations

from phloem.config import TrainConfig
from phloem.rewards.length import overlong_penalty
from phloem.tree import Finish, Group

__all__ = ["shaped"]


def shaped(group: Group, config: TrainConfig) -> Group:
    """The group with its rewards as they train.

    - `credit.overlong_share` adds DAPO's soft overlong punishment (arXiv 2503.14476, equation 13): 0 up to the last
      share of the token budget, then falling linearly to -1 at the budget. Lengths are sampled tokens of the whole
      rollout.
    - `credit.mask_truncated` takes the reward from rollouts that their budget cut off, so that they train nothing.
      Unlike in DAPO's ablation, where only their loss is masked, they leave the group's mean and spread as well, as
      every rollout without a reward does.
    - `sample.unclosed_thought: drop` takes the reward from thoughts that ended without answers, with the same effect.
    """
    credit, budget = config.credit, config.sample.max_completion_tokens
    drop = config.sample.unclosed_thought == "drop"
    if not credit.overlong_share and not credit.mask_truncated and not drop:
        return group
    buffer = max(1, round(credit.overlong_share * budget))
    rewards: list[float | None] = []
    for r, leaf in enumerate(group.leaves):
        reward = group.segments[leaf].reward
        if reward is not None and credit.mask_truncated and group.segments[leaf].finish is Finish.LENGTH:
            reward = None
        if drop and group.levels_S[leaf] < len(config.sample.levels):
            reward = None
        if reward is not None and credit.overlong_share:
            reward += overlong_penalty(int(group.completion_sampled(r).sum()), budget, buffer)
        rewards.append(reward)
    return group.with_rewards(rewards)
