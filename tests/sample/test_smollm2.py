"""The tree sampler on SmolLM2-135M-Instruct."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phloem.config import ModelConfig, SampleConfig
from phloem.models import decode_completion, encode_prompt, load_model
from phloem.sample import ForkPlan, HFSampler, Stage
from phloem.tree import Finish

pytestmark = [pytest.mark.model, pytest.mark.smollm2]

PLAN = ForkPlan((Stage(3, 24, "."), Stage(2, 6)))
KEYS = [(0, 0), (0, 1)]


@pytest.fixture(scope="module")
def loaded():
    model, tokenizer = load_model(ModelConfig())
    questions = ("What is the capital of France? Explain in one short sentence.", "What is 2 + 3? Say why, briefly.")
    return model, tokenizer, [encode_prompt(tokenizer, question) for question in questions]


@pytest.mark.parametrize("dtype", ["model", "bfloat16"])
def test_logprobs_are_the_policys(loaded, dtype):
    model, tokenizer, prompts = loaded
    own = HFSampler(model, tokenizer, SampleConfig(temperature=0.8, dtype=dtype))
    gaps = []
    for group in own.sample(prompts, PLAN, KEYS):
        assert any(segment.finish is Finish.FORK for segment in group.segments)
        for segment in group.segments:
            text = decode_completion(tokenizer, segment.tokens, own.eos_ids)
            assert "<|im_end|>" not in text
            if segment.finish is Finish.FORK:
                assert "." in tokenizer.decode(segment.tokens[-1:])
        for rollout in range(group.group_size):
            ids = torch.from_numpy(np.concatenate([group.prompt, group.completion(rollout)]))
            first = len(group.prompt)
            with torch.no_grad():
                exact = (model(ids[None]).logits[0, first - 1 : -1] / 0.8).log_softmax(-1)
            sampled = np.concatenate([group.segments[s].logprobs for s in group.path(group.leaves[rollout])])
            gaps.append(np.abs(exact[range(len(exact)), ids[first:]].numpy() - sampled))
    gap = np.concatenate(gaps)
    assert gap.max() < 2e-4 if dtype == "model" else gap.mean() < 0.05


def test_rollouts_do_not_depend_on_the_batch(loaded):
    model, tokenizer, prompts = loaded
    few, many = (
        HFSampler(model, tokenizer, SampleConfig(max_rows=rows)).sample(prompts, PLAN, KEYS) for rows in (5, 64)
    )
    for one, other in zip(few, many, strict=True):
        assert [s.tokens.tolist() for s in one.segments] == [s.tokens.tolist() for s in other.segments]
