"""Credit: what reaches each tree token from all branches through it.

    c_pos = share * sum_b w_b max(A_b, 0)    c_neg = share * sum_b w_b min(A_b, 0)    c_kl = kl_share * sum_b w_b

over the branches b that sampled the token, share = 1 or 1 / count (branches of the same level through the token).
The clipped surrogate of the whole group then needs these two numbers and one logprob per distinct token
(`phloem.loss.surrogate`). Source: GRPO-MA (arXiv 2509.24494), lambda-GRPO (arXiv 2509.21154); the fold of clipped
terms is exact because max and min split by the sign of the advantage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from phloem.credit.advantages import advantages, is_flat, rounding
from phloem.credit.values import Branches, branches
from phloem.credit.weights import Totals, weights
from phloem.presets import Rule, Share
from phloem.tree import Group, PrefixTree

__all__ = ["Credit", "RowCredit", "assign", "to_rows"]


@dataclass(frozen=True, eq=False)
class Credit:
    """Credit of one group under a rule.

    Attributes:
        tree: of the scored rollouts; all `_T` arrays lie on it.
        rule: the rule.
        branches: what the rule credits once.
        advantage_B, baseline_B, divisor_B: (value - baseline) / divisor of each branch.
        weight_B: w_b of each branch.
        count_E: branches of the same level through an entry's token (see `Branches`).
        c_pos_T, c_neg_T, c_kl_T: what reaches each tree token; 0 on prompt and forced text.
        zero_spread: the rewards of the scored rollouts are equal up to float32 rounding.
    """

    tree: PrefixTree
    rule: Rule
    branches: Branches
    advantage_B: Float64[np.ndarray, " B"]
    baseline_B: Float64[np.ndarray, " B"]
    divisor_B: Float64[np.ndarray, " B"]
    weight_B: Float64[np.ndarray, " B"]
    count_E: Int64[np.ndarray, " E"]
    c_pos_T: Float64[np.ndarray, " T"]
    c_neg_T: Float64[np.ndarray, " T"]
    c_kl_T: Float64[np.ndarray, " T"]
    zero_spread: bool

    def level_is_flat(self, level: int) -> bool:
        """Whether the values of a level's branches are equal up to float32 rounding of the rewards."""
        values = self.branches.value_B[self.branches.level_B == level]
        return is_flat(values, rounding(self.tree.group.rewards_R))


def assign(group: Group, rule: Rule, totals: Totals | None = None, tree: PrefixTree | None = None) -> Credit:
    """Credit of a group's tree tokens under a rule.

    Args:
        group: with rewards; rollouts that were not scored leave before anything is counted.
        rule: from `presets.get`.
        totals: counts over the optimiser step; None: the group is the whole step.
        tree: the tree of `group.scored()`, if it is there already.

    Raises:
        ValueError: the `constant` normaliser without rule.max_completion_tokens.
    """
    tree = PrefixTree.from_group(group.scored()) if tree is None else tree
    totals = Totals.of([tree]) if totals is None else totals
    over = branches(tree, rule.unit)
    gained = advantages(tree.group, over, rule)
    weight_B = weights(tree, over, rule, totals)

    # Branches of different levels never share a token's count.
    size = len(tree)
    key_E = over.entry_token_E
    if (over.level_B > 1).any():
        key_E = over.level_B[over.entry_branch_E] * size + key_E
    count_E = np.bincount(key_E)[key_E].astype(np.int64, copy=False) if len(key_E) else key_E

    gain_B = weight_B * gained.advantage_B

    def reaching(values_B: np.ndarray, share: Share) -> Float64[np.ndarray, " T"]:
        values_E = np.repeat(values_B, over.length_B)
        return _summed(over.entry_token_E, values_E / count_E if share == "once" else values_E, size)

    return Credit(
        tree=tree,
        rule=rule,
        branches=over,
        advantage_B=gained.advantage_B,
        baseline_B=gained.baseline_B,
        divisor_B=gained.divisor_B,
        weight_B=weight_B,
        count_E=count_E,
        c_pos_T=reaching(np.maximum(gain_B, 0.0), rule.share),
        c_neg_T=reaching(np.minimum(gain_B, 0.0), rule.share),
        c_kl_T=reaching(weight_B, rule.kl_share),
        zero_spread=is_flat(tree.group.rewards_R, rounding(tree.group.rewards_R)),
    )


def _summed(index_E: np.ndarray, values_E: np.ndarray, size: int) -> np.ndarray:
    """Values added up by index; numpy's bincount forgets its weights' type where there is nothing to count."""
    return np.bincount(index_E, values_E, minlength=size).astype(np.float64, copy=False)


@dataclass(frozen=True, eq=False)
class RowCredit:
    """Credit of one rollout in a row layout, one entry per completion token.

    The sum over rollouts of `weight * advantage` on a shared token is the tree's credit there, term by term, so a
    row-by-row trainer gets the same gradient, clipped or not: loss = -weight * min(ratio A, clip(ratio) A)
    + beta * kl_weight * k3. All 0 for forced text and for rollouts that were not scored.
    """

    advantage: Float64[np.ndarray, " L"]
    weight: Float64[np.ndarray, " L"]
    kl_weight: Float64[np.ndarray, " L"]


def to_rows(credit: Credit, group: Group) -> tuple[RowCredit, ...]:
    """The credit of every rollout of `group` (the group given to `assign`), for a trainer that works on rows.

    A segment that several rollouts pass through is credited once on the tree and stands in several rows here, so
    its weight is divided among them.

    Raises:
        ValueError: a group whose scored rollouts are not those of the credit.
    """
    scored = [r for r, leaf in enumerate(group.leaves) if group.segments[leaf].reward is not None]
    over, own = credit.branches, credit.tree.group
    if [len(group.completion(r)) for r in scored] != [len(own.completion(r)) for r in range(own.group_size)]:
        raise ValueError("the group is not the one the credit was assigned to")

    branch_of = {int(s): b for b, s in enumerate(over.segment_B)}
    rows_below = np.zeros(len(own.segments), dtype=np.int64)
    for leaf in own.leaves:
        rows_below[list(own.path(leaf))] += 1
    first_E = np.concatenate([[0], np.cumsum(over.length_B)])

    def zeros(r: int) -> np.ndarray:
        return np.zeros(len(group.completion(r)))

    by_segment = credit.rule.unit == "segment"
    rows = [RowCredit(zeros(r), zeros(r), zeros(r)) for r in range(group.group_size)]
    for r, leaf in enumerate(own.leaves):
        row, sampled = rows[scored[r]], own.completion_sampled(r)
        start = 0
        for s in own.path(leaf) if by_segment else (leaf,):
            branch = branch_of[s]
            stop = start + len(own.segments[s]) if by_segment else len(sampled)
            where = start + np.flatnonzero(sampled[start:stop])
            count = credit.count_E[first_E[branch] : first_E[branch + 1]]
            weight = credit.weight_B[branch] / (rows_below[s] if by_segment else 1)
            row.advantage[where] = credit.advantage_B[branch]
            row.weight[where] = weight / count if credit.rule.share == "once" else weight
            row.kl_weight[where] = weight / count if credit.rule.kl_share == "once" else weight
            start = stop
    return tuple(rows)
