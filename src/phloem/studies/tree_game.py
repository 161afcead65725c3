"""The binary tree of lambda-GRPO's toy experiment: rewards on its 16 leaves, and credit on its 30 edges.

A policy goes left or right four times. Of a group only the number of samples at each leaf matters, so hundreds of
independent seeds (axis S) are trained side by side. Nodes are numbered as a heap: children of n are 2n + 1 and
2n + 2, leaf l is node 15 + l, and an edge has the number of the node it leads to.
Source: lambda-GRPO (arXiv 2509.21154), section on the binary tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64

__all__ = ["DEPTH", "GAMES", "LEAVES", "RULES", "SAMPLES", "STEPS", "WINDOW", "Game", "Rule", "credit_on_edges"]

DEPTH, LEAVES, NODES = 4, 16, 15
SAMPLES, STEPS, WINDOW = 16, 250, 50
"""Samples of a group; steps; last steps over which the share of the target is taken."""

Rule = Literal["grpo", "lambda-grpo", "lambda-grpo-sn", "grpo-scaled"]
RULES: tuple[Rule, ...] = ("grpo", "lambda-grpo", "lambda-grpo-sn", "grpo-scaled")

UNDER = np.zeros((2 * NODES + 1, LEAVES))
"""UNDER[c, l] is 1 if leaf l lies below edge c (row 0, the root, is all ones)."""
for _leaf in range(LEAVES):
    _node = NODES + _leaf
    while _node >= 0:
        UNDER[_node, _leaf] = 1
        _node = (_node - 1) // 2 if _node else -1


@dataclass(frozen=True)
class Game:
    """Rewards: 1 for the target, r_neg for other leaves that share its first n turns, .7 for the rest."""

    n: int
    r_neg: float

    def rewards(self, target_S: Int64[np.ndarray, " S"]) -> Float64[np.ndarray, "S 16"]:
        leaves = np.arange(LEAVES)
        near = leaves >> (DEPTH - self.n) == (target_S >> (DEPTH - self.n))[:, None]
        return np.where(leaves == target_S[:, None], 1.0, np.where(near, self.r_neg, 0.7))


GAMES = tuple(Game(n, r_neg) for n in (1, 2) for r_neg in (-0.5, -1.0, -1.5))


def credit_on_edges(
    counts_SL: Float64[np.ndarray, "S 16"], rewards_SL: Float64[np.ndarray, "S 16"], rule: Rule
) -> tuple[Float64[np.ndarray, "S 15 2"], Float64[np.ndarray, " S"]]:
    """What each edge's logprob is multiplied with in the objective, and the factor on the learning rate.

    Advantages have the sample standard deviation and 1e-4; the loss is divided by all sampled tokens (Z = 64), under
    `lambda-grpo-sn` by the distinct ones (U). `grpo-scaled` is GRPO at lr U / Z: as small a step as lambda's, with
    GRPO's direction.

    Args:
        counts_SL: samples at each leaf, SAMPLES in all.
        rewards_SL: of the leaves.
        rule: of the credit.
    """
    mean_S = (counts_SL * rewards_SL).sum(1) / SAMPLES
    centred_SL = rewards_SL - mean_S[:, None]
    std_S = np.sqrt((counts_SL * centred_SL**2).sum(1) / (SAMPLES - 1))
    flat_S = std_S < 1e-9
    gain_SL = np.where(flat_S[:, None], 0.0, counts_SL * centred_SL / (std_S[:, None] + 1e-4))
    gain_SE = (gain_SL @ UNDER.T)[:, 1:]
    count_SE = (counts_SL @ UNDER.T)[:, 1:]
    U_S = np.count_nonzero(count_SE, axis=1).astype(float)
    Z = float(SAMPLES * DEPTH)
    if rule.startswith("lambda"):
        gain_SE = gain_SE / np.maximum(count_SE, 1)
    divisor_S = U_S if rule == "lambda-grpo-sn" else np.full(len(U_S), Z)
    factor_S = U_S / Z if rule == "grpo-scaled" else np.ones(len(U_S))
    return (gain_SE / divisor_S[:, None]).reshape(-1, NODES, 2), factor_S
