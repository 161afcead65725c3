"""The cost model, by hand on a tiny tree."""

import pytest
from tiny_models import tiny_model

from phloem.forward.plan import (
    ModelSize,
    choose_engine,
    flop_ceiling,
    plan_update,
    row_flops,
    tree_flops,
    tree_of_shape,
)
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


def test_frozen_parameters_need_no_gradient_of_their_own() -> None:
    model = tiny_model("llama")
    whole = ModelSize.of(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    frozen = ModelSize.of(model)
    assert (frozen.frozen, frozen.frozen_head) == (whole.body, whole.head)
    tree = PrefixTree.from_rollouts([0, 0], [[1]])
    pairs = 12 * whole.features * 2 * (1 + 2 + 3)
    assert tree_flops(whole, [tree]) - tree_flops(frozen, [tree]) == 2 * (3 * whole.body + whole.head)
    assert tree_flops(frozen, [tree]) == 4 * (3 * whole.body + whole.head) + pairs


SIZE = ModelSize(body=10**6, head=10**5, features=64, windows=(None,) * 4)


@pytest.mark.parametrize(
    ("prompt", "levels", "ratio"),
    [(50, ((4, 250), (4, 50)), 5600 / 1850), (1024, ((8, 128),), 4.5)],
)
def test_a_plan_from_lengths(prompt: int, levels: tuple[tuple[int, int], ...], ratio: float) -> None:
    tree = tree_of_shape(prompt, levels)
    plan = plan_update(SIZE, [tree, tree, tree], "paths", 4096)
    assert plan.token_ratio == pytest.approx(ratio)
    assert plan.ceiling == flop_ceiling(SIZE, [tree])
    assert (plan.packs, plan.deep, plan.repeated) == (2, 0, 0)
    assert f"token ratio {ratio:.2f}, at most {plan.ceiling:.2f} times as fast as rows; packs of up" in str(plan)


def test_a_tree_of_a_shape_has_its_levels() -> None:
    tree = tree_of_shape(10, ((2, 5), (3, 4), (2, 3)))
    assert (len(tree), tree.Z, tree.group.group_size) == (10 + 2 * 5 + 6 * 4 + 12 * 3, 12 * (5 + 4 + 3), 12)


def test_a_plan_names_trees_over_the_budget_and_what_they_repeat() -> None:
    small, large = tree_of_shape(50, ((2, 50), (2, 10))), tree_of_shape(50, ((4, 1000), (4, 50)))
    plan = plan_update(SIZE, [small, large], "paths", 1200)
    assert (plan.packs, plan.deep) == (1, 1)
    prompt = 6 * SIZE.body * 50 + 12 * SIZE.features * 4 * 50 * 51 / 2
    assert plan.repeated == pytest.approx(prompt / 3 / tree_flops(SIZE, [small, large]))
    assert str(plan).endswith("trees over 1,200 tokens: 1, depth first, which repeats 0.2% of the work")
    tight = plan_update(SIZE, [large], "paths", 300)
    assert str(tight).endswith(f"repeats {tight.repeated:.1%} of the work; raise optim.pack_tokens if memory allows")


def test_auto_takes_the_engine_of_the_device() -> None:
    assert [choose_engine(device) for device in ("cpu", "cuda", "mps")] == ["paths", "flex", "paths"]
