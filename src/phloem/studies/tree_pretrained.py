"""The binary tree with a pretrained causal language model: its logits of two tokens, all others masked.

Rows of the 8 paths to the last turns hold every node of the tree. The embeddings are frozen: they are a fifth of the
parameters of a small model, and only the rows of three tokens would move.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from phloem.kinds import PhloemError
from phloem.studies.tree_game import DEPTH, LEAVES, Game, Rule
from phloem.studies.tree_transformer import train_on_tree

__all__ = ["paths_and_places", "train_pretrained"]

TURNS = (" left", " right")


def train_pretrained(model: Any, tokenizer: Any, game: Game, rule: Rule, lr: float, seed: int) -> float:
    """Share of the target over the last steps of one seed; `model` is left as it was found.

    Raises:
        PhloemError: a tokenizer that spells a turn with several tokens.
    """
    turns = [tokenizer.encode(turn, add_special_tokens=False) for turn in TURNS]
    if any(len(ids) != 1 for ids in turns):
        raise PhloemError(f"the tokenizer has no single token for {' and '.join(TURNS)}")
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    words = torch.tensor([ids[0] for ids in turns])
    rows, place = paths_and_places(int(start), words)
    for embeddings in (model.get_input_embeddings(), model.get_output_embeddings()):
        embeddings.requires_grad_(False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    kept = [p.detach().clone() for p in parameters]

    def logprobs() -> Tensor:
        logits = model(input_ids=rows, use_cache=False).logits[..., words].float()
        return torch.log_softmax(logits.flatten(0, 1)[place], -1)[None]

    target = np.random.default_rng([seed, 1]).integers(0, LEAVES, 1)
    try:
        return float(train_on_tree(logprobs, FusedAdam(parameters, lr), game, rule, target, seed)[0])
    finally:
        with torch.no_grad():
            for p, before in zip(parameters, kept, strict=True):
                p.copy_(before)


class FusedAdam:
    """torch's Adam, whose one pass over the weights is what a step of so small a batch waits for; one seed."""

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        self.parameters, self.lr = parameters, lr
        self._inner = torch.optim.Adam(parameters, lr=lr, fused=True)

    def step(self, gradients: tuple[Tensor, ...], factor_S: Tensor) -> None:
        self._inner.param_groups[0]["lr"] = self.lr * float(factor_S[0])
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient
        self._inner.step()
        self._inner.zero_grad()


def paths_and_places(start: int, words: Tensor) -> tuple[Tensor, Tensor]:
    """(8, 4) ids of the paths to the last turns, and where in them, flattened, each of the 15 nodes first stands."""
    paths = torch.tensor([[(path >> (DEPTH - 2 - t)) & 1 for t in range(DEPTH - 1)] for path in range(LEAVES // 2)])
    rows = torch.cat([torch.full((LEAVES // 2, 1), start), words[paths]], dim=1)
    place = [
        (node - (2**level - 1)) * 2 ** (DEPTH - 1 - level) * DEPTH + level
        for level in range(DEPTH)
        for node in range(2**level - 1, 2 ** (level + 1) - 1)
    ]
    return rows, torch.tensor(place)
