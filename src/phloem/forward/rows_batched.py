"""The row-by-row forward as one would run it in earnest: the baseline that the tree forward is timed against.

Rows are sorted by length and padded on the right into micro-batches. Under causal attention no row sees padding to
its right, so no mask is passed and SDPA keeps its fastest path. The head runs in chunks, at predicting positions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from phloem.forward.head import CHUNK, Targets, head_logprobs
from phloem.forward.split import split
from phloem.tree.rollout import Group

__all__ = ["RowBatch", "row_batches"]


@dataclass(frozen=True, eq=False)
class RowBatch:
    """One micro-batch, forward done.

    Attributes:
        members: (group, rollout) of each row.
        logprobs_E: of the rows' sampled tokens, one row after the other, in nats.
        entropy_E: of the distributions they were drawn from, in nats.
    """

    members: list[tuple[int, int]]
    logprobs_E: Float[torch.Tensor, " E"]
    entropy_E: Float[torch.Tensor, " E"]


def row_batches(
    model: nn.Module, groups: Sequence[Group], temperature: float = 1.0, max_tokens: int = 4096, chunk: int = CHUNK
) -> Iterator[RowBatch]:
    """Runs all rollouts of some groups as rows; take the backward of a batch before the next one is asked for.

    Args:
        model: on its plain attention, or prepared (without a pack that is the same).
        max_tokens: padded tokens of a micro-batch; a longer row gets a batch of its own.
        chunk: how many positions' worth of logits are held at once.
    """
    body, head = split(model)
    device = next(model.parameters()).device
    rows = [(g, r) for g, group in enumerate(groups) for r in range(group.group_size)]
    for members in _micro_batches(rows, [_length(groups[g], r) for g, r in rows], max_tokens):
        width = max(_length(groups[g], r) for g, r in members)
        ids_BL = np.zeros((len(members), width), dtype=np.int64)
        trained_BL = np.zeros((len(members), width), dtype=bool)
        for b, (g, r) in enumerate(members):
            prompt, completion = groups[g].prompt, groups[g].completion(r)
            ids_BL[b, : len(prompt) + len(completion)] = np.concatenate([prompt, completion])
            trained_BL[b, len(prompt) : len(prompt) + len(completion)] = groups[g].completion_sampled(r)
        position_E = torch.from_numpy(np.flatnonzero(trained_BL)).to(device)
        ids = torch.from_numpy(ids_BL).to(device)
        hidden = body(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
        targets = Targets(ids.flatten()[position_E], torch.arange(len(position_E), device=device))
        logprobs, entropy = head_logprobs(hidden.index_select(0, position_E - 1), head, targets, temperature, chunk)
        yield RowBatch(members, logprobs, entropy)


def _length(group: Group, rollout: int) -> int:
    return len(group.prompt) + len(group.completion(rollout))


def _micro_batches(rows: list[tuple[int, int]], lengths: list[int], max_tokens: int) -> Iterator[list[tuple[int, int]]]:
    """Rows from the longest to the shortest, as many at a time as fit padded."""
    members: list[tuple[int, int]] = []
    width = 0
    for i in sorted(range(len(rows)), key=lambda i: -lengths[i]):
        if members and width * (len(members) + 1) > max_tokens:
            yield members
            members = []
        width = width if members else lengths[i]
        members.append(rows[i])
    if members:
        yield members
