"""The comparison that the equivalence tests share: a weighted sum over rows, alone and on trees, with its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from phloem.forward import logprobs, logprobs_of_rows, pack, split_into_packs
from phloem.tree import Group, PrefixTree

Weights = list[list[np.ndarray]]


@dataclass(frozen=True)
class Outcome:
    """Values of every row's sampled tokens (log-probability, entropy), and the gradient of every parameter."""

    values: torch.Tensor
    gradients: dict[str, torch.Tensor]


def random_weights(groups: Sequence[Group], seed: int = 0) -> Weights:
    """For each group and rollout, weights of its log-probabilities and entropies, shape (2, L); 0 where forced."""
    draw = np.random.default_rng(seed)
    return [
        [draw.normal(size=(2, len(g.completion(r)))) * g.completion_sampled(r) for r in range(g.group_size)]
        for g in groups
    ]


def by_rows(model: nn.Module, groups: Sequence[Group], weights: Weights, temperature: float = 1.0) -> Outcome:
    """The oracle: the sum over all rows, each alone."""
    model.zero_grad()
    values = []
    for group, weights_R in zip(groups, weights, strict=True):
        for r, row in enumerate(logprobs_of_rows(model, group, temperature)):
            both = torch.stack([row.logprobs_L, row.entropy_L])
            if both.requires_grad and both.numel():
                (both * torch.from_numpy(weights_R[r]).to(both)).sum().backward()
            values.append(both.detach()[:, torch.from_numpy(group.completion_sampled(r))])
    return Outcome(torch.cat(values, dim=1), gradients(model))


def by_trees(
    model: nn.Module,
    groups: Sequence[Group],
    weights: Weights,
    temperature: float = 1.0,
    budget: int = 10**6,
    chunk: int = 16,
) -> Outcome:
    """The same sum on packed trees: the weights of all rollouts through a token, added up."""
    model.zero_grad()
    trees = [PrefixTree.from_group(group) for group in groups]
    values: dict[int, torch.Tensor] = {}
    for members in split_into_packs(trees, budget):
        packed = pack([trees[i] for i in members])
        if len(packed.trained_E) == 0:
            continue
        found = logprobs(model, packed, temperature, chunk)
        both_E = torch.stack([found.logprobs_E, found.entropy_E])
        summed = np.concatenate([on_tree(trees[i], weights[i]) for i in members], axis=1)
        (both_E * torch.from_numpy(summed).to(both_E)[:, packed.trained_E]).sum().backward()
        both_T = both_E.new_full((2, len(packed)), torch.nan)
        both_T[:, packed.trained_E] = both_E.detach()
        for i, first in zip(members, packed.tree_start, strict=False):
            values[i] = both_T[:, first + trees[i].row_index[trees[i].row_sampled]]
    return Outcome(torch.cat([values[i] for i in sorted(values)], dim=1), gradients(model))


def on_tree(tree: PrefixTree, weights_R: list[np.ndarray]) -> np.ndarray:
    flat = np.concatenate(weights_R, axis=1)
    return np.stack([np.bincount(tree.row_index, row, minlength=len(tree)) for row in flat])


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def assert_same_values(found: Outcome, wanted: Outcome, tolerance: float) -> None:
    assert found.values.shape == wanted.values.shape
    difference = (found.values - wanted.values).abs().max().item() if wanted.values.numel() else 0.0
    assert difference <= tolerance * max(1.0, wanted.values.abs().max().item() if wanted.values.numel() else 0.0)


def assert_same_gradients(found: Outcome, wanted: Outcome, overall: float, per_tensor: float) -> None:
    """Differences relative to norms; a tensor's norm counts as at least a thousandth of the whole gradient's."""
    whole = torch.stack([g.norm() for g in wanted.gradients.values()]).norm().item()
    assert whole > 0
    differences = {name: (found.gradients[name] - g).norm().item() for name, g in wanted.gradients.items()}
    assert sum(d**2 for d in differences.values()) ** 0.5 <= overall * whole
    for name, g in wanted.gradients.items():
        assert differences[name] <= per_tensor * max(g.norm().item(), 1e-3 * whole), name
