"""Weights: how much one token of a branch counts, w_b >= 0.

With n_groups, Z and U of the optimiser step and Z_g, U_g, G_g (scored rollouts) of the group:

| normaliser | w_b |
|---|---|
| token | 1 / Z |
| token-group | 1 / (n_groups Z_g) |
| distinct | 1 / U |
| distinct-group | 1 / (n_groups U_g) |
| sequence | 1 / (n_groups G_g abs(y_b)) |
| segment | 1 / (n_groups n_level abs(y_b)), n_level = scored branches of the level |
| constant | 1 / (n_groups G_g max_completion_tokens) |
| rollout | 1 / (n_groups G_g) |

Every divisor is a count over the whole optimiser step, known before the first backward and handed in (`Totals`):
how groups fall into micro-batches or on ranks never changes the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from phloem.credit.values import Branches
from phloem.presets import Rule
from phloem.tree import PrefixTree

__all__ = ["Totals", "weights"]


@dataclass(frozen=True)
class Totals:
    """Counts over the groups of an optimiser step, on all ranks; groups without a scored rollout do not count.

    Attributes:
        n_groups: groups with a scored rollout.
        Z: sampled tokens, once per scored rollout.
        U: distinct sampled tokens of the scored rollouts.
    """

    n_groups: int
    Z: int
    U: int

    @classmethod
    def of(cls, trees: Iterable[PrefixTree]) -> Totals:
        """Of the trees of groups reduced to their scored rollouts (`group.scored()`)."""
        counted = [tree for tree in trees if tree.group.group_size]
        return cls(len(counted), sum(t.Z for t in counted), sum(t.U for t in counted))


def weights(tree: PrefixTree, over: Branches, rule: Rule, totals: Totals) -> Float64[np.ndarray, " B"]:
    """w_b of each branch; branches without a sampled token have no token to weigh and get 0.

    Raises:
        ValueError: the `constant` normaliser without rule.max_completion_tokens.
    """
    n, size = totals.n_groups, tree.group.group_size
    ones_B = np.ones(len(over.value_B))
    _, level_of_B, n_level = np.unique(over.level_B, return_inverse=True, return_counts=True)
    match rule.normaliser:
        case "token":
            divisor_B = totals.Z * ones_B
        case "token-group":
            divisor_B = n * tree.Z * ones_B
        case "distinct":
            divisor_B = totals.U * ones_B
        case "distinct-group":
            divisor_B = n * tree.U * ones_B
        case "sequence":
            divisor_B = n * size * over.length_B * ones_B
        case "segment":
            divisor_B = n * n_level[level_of_B] * over.length_B * ones_B
        case "constant":
            if rule.max_completion_tokens is None:
                raise ValueError(
                    "the constant normaliser divides by max_completion_tokens, and the rule has none: "
                    "presets.get('dr-grpo', max_completion_tokens=...)"
                )
            divisor_B = n * size * rule.max_completion_tokens * ones_B
        case "rollout":
            divisor_B = n * size * ones_B
    return np.divide(over.length_B > 0, divisor_B, out=np.zeros_like(ones_B), where=divisor_B > 0)
