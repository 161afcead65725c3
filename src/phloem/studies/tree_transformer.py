"""The binary tree with a small transformer from scratch, many seeds in one batch.

Every parameter has a leading axis S, one slice per seed, and the loss is the sum over seeds: gradients and Adam's
moments never mix. One forward runs over the 15 distinct prefixes of the tree, under the mask that lets a node see its
ancestors, not over 16 rows of 4 tokens. Layer norms have no parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from phloem.studies.tree_game import DEPTH, LEAVES, SAMPLES, STEPS, WINDOW, Game, Rule, credit_on_edges
from phloem.studies.tree_tabular import leaf_probabilities

__all__ = ["Adam", "Shape", "SmallTransformers", "train_on_tree", "train_transformers"]

NODES = LEAVES - 1
DEPTHS = torch.tensor([(node + 1).bit_length() - 1 for node in range(NODES)])
TOKENS = torch.tensor([0] + [1 + (node - 1) % 2 for node in range(1, NODES)])
"""0: the beginning, 1: left, 2: right; the token that leads to each node."""


def _ancestors() -> Tensor:
    """(15, 15), true where the second node is on the way to the first or is it."""
    seen = torch.zeros(NODES, NODES, dtype=torch.bool)
    for node in range(NODES):
        at = node
        while at >= 0:
            seen[node, at] = True
            at = (at - 1) // 2 if at else -1
    return seen


@dataclass(frozen=True)
class Shape:
    """Of one transformer."""

    width: int = 32
    layers: int = 2
    heads: int = 2


class SmallTransformers:
    """S independent decoder-only transformers that read the whole tree at once."""

    def __init__(self, seeds: int, shape: Shape, seed: int) -> None:
        self.shape, self.seeds = shape, seeds
        generator = torch.Generator().manual_seed(seed)
        width = shape.width

        def matrix(rows: int, columns: int, scale: float) -> Tensor:
            return (scale * torch.randn(seeds, rows, columns, generator=generator)).requires_grad_()

        self.token = matrix(3, width, 0.5)
        self.place = matrix(DEPTH, width, 0.5)
        self.blocks = [
            {
                "qkv": matrix(width, 3 * width, width**-0.5),
                "out": matrix(width, width, (2 * shape.layers * width) ** -0.5),
                "up": matrix(width, 4 * width, width**-0.5),
                "down": matrix(4 * width, width, (8 * shape.layers * width) ** -0.5),
            }
            for _ in range(shape.layers)
        ]
        self.head = matrix(width, 2, 0.1 * width**-0.5)
        self.seen = _ancestors()

    @property
    def parameters(self) -> list[Tensor]:
        return [self.token, self.place, self.head, *(p for block in self.blocks for p in block.values())]

    def logprobs(self) -> Tensor:
        """(S, 15, 2): log-probability of left and right at each node."""
        x = self.token[:, TOKENS] + self.place[:, DEPTHS]
        size = (self.shape.width,)
        for block in self.blocks:
            split = (self.seeds, NODES, 3, self.shape.heads, -1)
            q, k, v = torch.bmm(F.layer_norm(x, size), block["qkv"]).view(split).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.seen)
            x = x + torch.bmm(mixed.transpose(1, 2).reshape(self.seeds, NODES, -1), block["out"])
            x = x + torch.bmm(F.gelu(torch.bmm(F.layer_norm(x, size), block["up"])), block["down"])
        return torch.log_softmax(torch.bmm(F.layer_norm(x, size), self.head), -1)


class Optimiser(Protocol):
    """Moves parameters along gradients; the learning rate of each seed is multiplied by its factor."""

    parameters: list[Tensor]

    def step(self, gradients: tuple[Tensor, ...], factor_S: Tensor) -> None: ...


class Adam:
    """Adam without decay; its rate differs along the parameters' first axis, the seeds."""

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        self.parameters, self.lr, self.steps = parameters, lr, 0
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...], factor_S: Tensor) -> None:
        self.steps += 1
        first, second = 1 - 0.9**self.steps, 1 - 0.999**self.steps
        for p, g, (mean, square) in zip(self.parameters, gradients, self.moments, strict=True):
            mean.lerp_(g, 0.1)
            square.lerp_(g * g, 0.001)
            rate = (self.lr / first) * factor_S.view(-1, *(1,) * (p.dim() - 1))
            p -= rate * mean / ((square / second).sqrt() + 1e-8)


def train_on_tree(
    logprobs: Callable[[], Tensor], optimiser: Optimiser, game: Game, rule: Rule, target_S: np.ndarray, seed: int
) -> np.ndarray:
    """Share of samples at the target over the last WINDOW steps of each seed; any policy that an optimiser can move."""
    rng = np.random.default_rng(seed)
    seeds = len(target_S)
    rewards_SL = game.rewards(target_S)
    hits_S = np.zeros(seeds)
    for step in range(STEPS):
        now = logprobs()
        probability_SL = leaf_probabilities(now.detach()[:, :, 1].double().exp().numpy())
        counts_SL = rng.multinomial(SAMPLES, probability_SL / probability_SL.sum(1, keepdims=True)).astype(float)
        if step >= STEPS - WINDOW:
            hits_S += counts_SL[np.arange(seeds), target_S]
        credit, factor_S = credit_on_edges(counts_SL, rewards_SL, rule)
        loss = -(torch.from_numpy(credit).to(now.dtype) * now).sum()
        optimiser.step(torch.autograd.grad(loss, optimiser.parameters), torch.from_numpy(factor_S).to(now.dtype))
    return hits_S / (SAMPLES * WINDOW)


def train_transformers(
    game: Game, rule: Rule, lr: float, seeds: int, seed: int, shape: Shape | None = None
) -> np.ndarray:
    """As `train_table`, with a transformer of its own for each seed, trained by Adam."""
    policies = SmallTransformers(seeds, shape or Shape(), seed)
    target_S = np.random.default_rng([seed, 1]).integers(0, LEAVES, seeds)
    optimiser = Adam(policies.parameters, lr)
    return train_on_tree(policies.logprobs, optimiser, game, rule, target_S, seed)
