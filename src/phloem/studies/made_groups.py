"""Random groups of plain rollouts that share prefixes, for studies that need groups without a model."""

from __future__ import annotations

import numpy as np

from phloem.tree import Group

__all__ = ["made_group", "made_groups"]


def made_group(rng: np.random.Generator, size: int = 8, length: int = 24, vocabulary: int = 4) -> Group:
    """Rollouts of which half copy a prefix of an earlier one, of different lengths, with rewards 0, .5 or 1."""
    rows: list[np.ndarray] = []
    for _ in range(size):
        fresh = rng.integers(0, vocabulary, int(rng.integers(length // 2, length + 1)))
        if rows and rng.random() < 0.5:
            model = rows[int(rng.integers(len(rows)))]
            keep = int(rng.integers(1, len(model) + 1))
            fresh = np.concatenate([model[:keep], fresh[: max(0, len(fresh) - keep)]])
        rows.append(fresh)
    return Group.from_rollouts([0], rows, rng.choice([0.0, 0.5, 1.0], size).tolist())


def made_groups(number: int, seed: int, **shape: int) -> list[Group]:
    """Groups with a spread of rewards."""
    rng = np.random.default_rng(seed)
    groups: list[Group] = []
    while len(groups) < number:
        group = made_group(rng, **shape)
        if np.ptp(group.rewards_R) > 0:
            groups.append(group)
    return groups
