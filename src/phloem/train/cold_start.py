"""Supervised steps on a task's demonstrations, so that the format is known before reinforcement begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from phloem.config import ColdStartConfig
from phloem.tasks.task import Example
from phloem.train.ranks import ALONE, Ranks

__all__ = ["cold_start", "demonstration_rows"]

IGNORED = -100
"""Label of a token without a loss; the value cross_entropy skips."""


def demonstration_rows(
    examples: Sequence[Example],
    prompt_ids: Callable[[Example], np.ndarray],
    completion_ids: Callable[[str], np.ndarray],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(prompt ids, completion ids) of every demonstration."""
    return [(prompt_ids(e), completion_ids(text)) for e in examples for text in e.demonstrations]


def cold_start(
    model: nn.Module,
    rows: Sequence[tuple[np.ndarray, np.ndarray]],
    config: ColdStartConfig,
    machine: Any,
    seed: int,
    ranks: Ranks = ALONE,
) -> Iterator[float]:
    """Takes `config.steps` steps of AdamW and yields the loss of each: the mean over completion tokens, in nats.

    `machine` knows the device, the precision and how to go backward: the run's policy. Each process takes its share of
    a batch's rows.
    """
    rng = np.random.default_rng([seed, 1])
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=0.0)
    model.train()
    order: list[int] = []
    for _ in range(config.steps):
        while len(order) < config.batch_size:
            order += rng.permutation(len(rows)).tolist()
        batch, order = [rows[i] for i in order[: config.batch_size]], order[config.batch_size :]
        loss = 0.0
        if own := [batch[i] for i in ranks.own(len(batch))]:
            ids, mask, labels = (t.to(machine.device) for t in _padded(own))
            with machine.autocast():
                logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            mean = cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORED)
            part = mean * (_tokens(own) / _tokens(batch))
            machine.backward(part)
            loss = float(part.detach())
        ranks.add_up_gradients(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        yield sum(ranks.gather(loss))


def _tokens(rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> int:
    """Completion tokens."""
    return sum(len(completion) for _, completion in rows)


def _padded(rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, mask and labels, shape (B, L), padded on the right; prompts and padding have no label."""
    longest = max(len(prompt) + len(completion) for prompt, completion in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, IGNORED)
    for i, (prompt, completion) in enumerate(rows):
        start, stop = len(prompt), len(prompt) + len(completion)
        ids[i, :start], ids[i, start:stop] = torch.from_numpy(prompt), torch.from_numpy(completion)
        mask[i, :stop] = 1
        labels[i, start:stop] = torch.from_numpy(completion)
    return ids, mask, labels
