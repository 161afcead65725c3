"""The cost model, by hand on a tiny tree."""

import pytest
from tiny_models import tiny_model

from phloem.forward.plan import ModelSize, flop_ceiling, row_flops, tree_flops
from phloem.tree import PrefixTree

pytestmark = pytest.mark.model


def test_sizes_of_a_model() -> None:
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48
    for kind, windows in {"llama": (None, None), "mistral-window": (5, 5), "qwen2-window": (None, 6)}.items():
        size = ModelSize.of(tiny_model(kind))
        assert size == ModelSize(body=2 * layer, head=61 * 32, features=32, windows=windows)
    gemma = ModelSize.of(tiny_model("gemma3"))
    assert (gemma.features, gemma.windows) == (64, (4, None))
    assert ModelSize.of(tiny_model("gpt2")).body == 2 * (32 * 96 + 32 * 32 + 2 * 32 * 48)


def test_flops_by_hand() -> None:
    # prompt of 2, rows a b c and a b d: 6 distinct tokens, 10 row tokens; forks at b
    tree = PrefixTree.from_rollouts([0, 0], [[1, 2, 3], [1, 2, 4]])
    size = ModelSize(body=1000, head=100, features=10, windows=(None, 2))
    full, window = 1 + 2 + 3 + 4 + 5 + 5, 1 + 2 + 2 + 2 + 2 + 2
    assert tree_flops(size, [tree]) == 6 * 1000 * 6 + 12 * 10 * (full + window) + 6 * 100 * 3
    full, window = 2 * 15, 2 * (1 + 2 + 2 + 2 + 2)
    assert row_flops(size, [tree]) == 6 * 1000 * 10 + 12 * 10 * (full + window) + 6 * 100 * 6
    assert flop_ceiling(size, [tree]) == row_flops(size, [tree]) / tree_flops(size, [tree])


def test_nothing_shared_nothing_saved() -> None:
    tree = PrefixTree.from_rollouts([0, 0], [[1, 2, 3]])
    assert flop_ceiling(ModelSize(1000, 100, 10, (None,)), [tree]) == 1.0
