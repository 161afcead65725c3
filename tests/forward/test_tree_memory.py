"""A packed tree holds what its distinct tokens take as rows: no keys, values or outputs twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from peak_memory import PeakMemory
from tiny_models import tiny_model
from torch import nn

from phloem.forward import logprobs, pack, prepare
from phloem.forward.rows_batched import row_batches
from phloem.tree import Group, PrefixTree, Segment

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model() -> nn.Module:
    held = tiny_model("llama", hidden_size=192, intermediate_size=512, num_attention_heads=6)
    prepare(held, "paths")
    for parameter in held.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return held.train()


def a_group(prompt: int, thought: int, answer: int, thoughts: int, answers: int) -> Group:
    draw = np.random.default_rng(0)
    segments = [Segment(draw.integers(0, 61, thought)) for _ in range(thoughts)]
    segments += [Segment(draw.integers(0, 61, answer), parent=n // answers) for n in range(thoughts * answers)]
    return Group(draw.integers(0, 61, prompt), tuple(segments))


def peak(work: Callable[[], torch.Tensor], autocast: bool = False) -> int:
    with PeakMemory() as memory, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total = work()
        with torch.autocast("cpu", enabled=False):
            total.backward()
    return memory.peak


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16 autocast"])
@pytest.mark.parametrize("shape", [(50, 250, 50, 4, 4), (50, 600, 50, 2, 4), (50, 100, 16, 2, 16)])
def test_memory_follows_distinct_tokens(model: nn.Module, shape: tuple[int, ...], autocast: bool) -> None:
    group = a_group(*shape)
    tree = PrefixTree.from_group(group)
    ratio = sum(len(tree.path(r)) for r in range(group.group_size)) / len(tree)
    assert ratio > 2.5

    def as_rows() -> torch.Tensor:
        (batch,) = row_batches(model, [group], max_tokens=10**6)
        return batch.logprobs_E.sum()

    on_tree = peak(lambda: logprobs(model, pack([tree])).logprobs_E.sum(), autocast)
    assert on_tree * ratio < 1.15 * peak(as_rows, autocast)


@pytest.mark.parametrize("answers", [1, 2])
def test_memory_of_a_chain_grows_with_its_length(model: nn.Module, answers: int) -> None:
    def of(length: int) -> int:
        tree = PrefixTree.from_group(a_group(10, length, length, 1, answers))
        return peak(lambda: logprobs(model, pack([tree])).logprobs_E.sum())

    assert of(1024) < 4.1 * of(256)
