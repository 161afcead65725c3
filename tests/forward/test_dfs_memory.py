"""The depth-first engine holds the activations of one path at most, however many leaves a tree has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peak_memory import PeakMemory
from tiny_models import tiny_model
from torch import nn
from update_machine import Plain

from phloem.forward import Logprobs, bounded_backward, logprobs, pack, prepare
from phloem.tree import Group, PrefixTree, Segment

pytestmark = pytest.mark.model


def a_tree(thoughts: int, answers: int) -> PrefixTree:
    draw = np.random.default_rng(0)
    segments = [Segment(draw.integers(0, 61, 160)) for _ in range(thoughts)]
    segments += [Segment(draw.integers(0, 61, 20), parent=n // answers) for n in range(thoughts * answers)]
    return PrefixTree.from_group(Group(draw.integers(0, 61, 20), tuple(segments)))


def summed(index_E: torch.Tensor, found: Logprobs) -> torch.Tensor:
    return found.logprobs_E.sum()


def peak_of_pieces(model: nn.Module, tree: PrefixTree, budget: int) -> int:
    with PeakMemory() as memory:
        bounded_backward(model, pack([tree]), budget, summed, Plain())
    return memory.peak


def test_memory_is_that_of_one_path_whatever_the_leaves() -> None:
    model = tiny_model("llama", hidden_size=96, intermediate_size=256, num_attention_heads=6, num_hidden_layers=3)
    prepare(model, "paths")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    small, large = a_tree(2, 2), a_tree(8, 8)
    one = PrefixTree.from_rollouts(small.group.prompt, [small.group.completion(0)])
    with PeakMemory() as memory:
        logprobs(model, pack([one])).logprobs_E.sum().backward()
    assert memory.peak > 10**6
    assert peak_of_pieces(model, small, len(one)) < 1.3 * memory.peak
    assert peak_of_pieces(model, large, len(one)) < 1.3 * memory.peak
    assert peak_of_pieces(model, large, len(one) // 4) < 0.6 * memory.peak
    with PeakMemory() as whole:
        logprobs(model, pack([large])).logprobs_E.sum().backward()
    assert whole.peak > 8 * memory.peak  # the measure sees what packing the tree whole would hold
