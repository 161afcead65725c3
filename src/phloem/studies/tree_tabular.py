"""The binary tree with a table for a policy: one logit per node, p(right) = sigmoid, plain gradient ascent."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from phloem.studies.tree_game import DEPTH, LEAVES, SAMPLES, STEPS, WINDOW, Game, Rule, credit_on_edges

__all__ = ["leaf_probabilities", "train_table"]


def leaf_probabilities(right_SN: Float64[np.ndarray, "S 15"]) -> Float64[np.ndarray, "S 16"]:
    """Probability of each leaf from that of turning right at each node."""
    here_S = np.ones((len(right_SN), 1))
    for level in range(DEPTH):
        right = right_SN[:, 2**level - 1 : 2 ** (level + 1) - 1]
        here_S = np.stack([here_S * (1 - right), here_S * right], axis=2).reshape(len(right_SN), -1)
    return here_S


def train_table(game: Game, rule: Rule, lr: float, seeds: int, seed: int) -> Float64[np.ndarray, " S"]:
    """Share of samples at the target over the last WINDOW of STEPS steps, for each of `seeds` independent runs."""
    rng = np.random.default_rng(seed)
    target_S = rng.integers(0, LEAVES, seeds)
    rewards_SL = game.rewards(target_S)
    logit_SN = np.zeros((seeds, LEAVES - 1))
    hits_S = np.zeros(seeds)
    for step in range(STEPS):
        right_SN = 1 / (1 + np.exp(-logit_SN))
        probability_SL = leaf_probabilities(right_SN)
        counts_SL = rng.multinomial(SAMPLES, probability_SL / probability_SL.sum(1, keepdims=True)).astype(float)
        if step >= STEPS - WINDOW:
            hits_S += counts_SL[np.arange(seeds), target_S]
        credit, factor_S = credit_on_edges(counts_SL, rewards_SL, rule)
        # d log p(right) = 1 - p(right), d log p(left) = -p(right)
        gradient_SN = credit[:, :, 1] - right_SN * credit.sum(2)
        logit_SN += lr * factor_S[:, None] * gradient_SN
    return hits_S / (SAMPLES * WINDOW)
