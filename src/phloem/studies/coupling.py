"""The coupling of thoughts and answers: the cosine between the gradients their tokens give, under a rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phloem import credit, presets
from phloem.config import ModelConfig, TrainConfig
from phloem.forward import logprobs, pack
from phloem.tree import Group, PrefixTree

__all__ = ["Coupler", "thought_mask"]


def thought_mask(tree: PrefixTree) -> np.ndarray:
    """(T,), true on tokens of thoughts: those of a first segment that was continued."""
    mask = np.zeros(len(tree), dtype=bool)
    parents = {segment.parent for segment in tree.group.segments}
    for s, segment in enumerate(tree.group.segments):
        if segment.parent is None and s in parents:
            mask[tree.segment_index(s)] = True
    return mask & tree.sampled_T


class Coupler:
    """A policy whose gradients on thoughts and on answers are compared; on-policy, so every ratio is 1."""

    def __init__(self, model: Path) -> None:
        from phloem.train.policy import Policy

        self.policy = Policy.load(TrainConfig(model=ModelConfig(path=str(model))), lambda line: None)

    def cosine(self, groups: Sequence[Group], rule: str) -> dict[str, float] | None:
        """Cosine of the two gradients of one step's groups, and the norm of each; None where one of them is 0."""
        trees = [PrefixTree.from_group(group.scored()) for group in groups]
        totals = credit.Totals.of(trees)
        found = [credit.assign(t.group, presets.get(rule), totals, t) for t in trees]
        net_E = np.concatenate([(c.c_pos_T + c.c_neg_T)[c.tree.sampled_T] for c in found])
        thought_E = np.concatenate([thought_mask(t)[t.sampled_T] for t in trees])
        if not (net_E[thought_E].any() and net_E[~thought_E].any()):
            return None
        thoughts = self._gradient(trees, np.where(thought_E, net_E, 0.0))
        answers = self._gradient(trees, np.where(thought_E, 0.0, net_E))
        dot = sum(float((a * b).sum()) for a, b in zip(thoughts, answers, strict=True))
        one, two = (sum(float((g * g).sum()) for g in part) ** 0.5 for part in (thoughts, answers))
        return {"cosine": dot / (one * two), "thoughts": one, "answers": two}

    def _gradient(self, trees: Sequence[PrefixTree], net_E: np.ndarray) -> tuple[Any, ...]:
        found = logprobs(self.policy.model, pack(trees).to(self.policy.device))
        loss = -(torch.from_numpy(net_E).to(found.logprobs_E) * found.logprobs_E).sum()
        return torch.autograd.grad(loss, self.policy.trained)
