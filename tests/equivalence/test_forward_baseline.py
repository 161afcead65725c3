"""The batched rows that timings compare against compute what the oracle computes."""

import numpy as np
import pytest
import torch
from groups import Shape, random_group
from tiny_models import KINDS, float64_throughout, tiny_model

from phloem.forward import logprobs_of_rows
from phloem.forward.rows_batched import row_batches

pytestmark = pytest.mark.model


@pytest.mark.parametrize("max_tokens", [1, 40, 10**6])
@pytest.mark.parametrize("kind", KINDS)
def test_batched_rows_equal_rows_alone(kind: str, max_tokens: int) -> None:
    model = tiny_model(kind, torch.float64).eval()
    draw = np.random.default_rng(0)
    groups = [random_group(draw, Shape(levels=2, longest=6, forced=True)) for _ in range(2)]
    seen = []
    with torch.no_grad(), float64_throughout():
        rows = [logprobs_of_rows(model, group, 0.8) for group in groups]
        for batch in row_batches(model, groups, 0.8, max_tokens, chunk=7):
            seen += batch.members
            flags = [torch.from_numpy(groups[g].completion_sampled(r)) for g, r in batch.members]
            wanted = [rows[g][r].logprobs_L[flag] for (g, r), flag in zip(batch.members, flags, strict=True)]
            torch.testing.assert_close(batch.logprobs_E, torch.cat(wanted), rtol=0, atol=1e-12)
            entropies = [rows[g][r].entropy_L[flag] for (g, r), flag in zip(batch.members, flags, strict=True)]
            torch.testing.assert_close(batch.entropy_E, torch.cat(entropies), rtol=0, atol=1e-12)
    assert sorted(seen) == [(g, r) for g, group in enumerate(groups) for r in range(group.group_size)]
