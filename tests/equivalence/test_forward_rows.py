"""The tree forward against each rollout alone: values and every parameter's gradient."""

from typing import Any

import numpy as np
import pytest
import torch
from groups import Shape, random_group
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import KINDS, VOCABULARY, float64_throughout, tiny_model
from tree_against_rows import assert_same_gradients, assert_same_values, by_rows, by_trees, random_weights

from phloem.forward import CannotServe, Row, logprobs, logprobs_of_rows, pack, prepare
from phloem.forward.prepare import check
from phloem.tree import Group, PrefixTree, Segment

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("small_cuts_and_flex")]

ENGINES = ("dense", "paths", "flex")


def _quietly(line: str) -> None:
    pass


def random_groups(number: int, levels: int, seed: int = 0, forced: bool = True) -> list[Group]:
    """Groups whose rollouts fork at random, with duplicates, prefixes of one another and empty completions."""
    draw = np.random.default_rng(seed)
    shape = Shape(levels=levels, vocabulary=5, longest=5, forced=forced, prompt=4)
    found = []
    while len(found) < number:
        group = random_group(draw, shape)
        if 2 <= group.group_size <= 24 and any(group.completion_sampled(r).any() for r in range(group.group_size)):
            found.append(group)
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_float64_equals_rows_to_rounding(kind: str, engine: str) -> None:
    model = tiny_model(kind, torch.float64)
    groups = random_groups(3, levels=4, seed=1)
    weights = random_weights(groups)
    prepare(model, engine, announce=_quietly)
    with float64_throughout():
        wanted = by_rows(model, groups, weights, temperature=0.7)
        found = by_trees(model, groups, weights, temperature=0.7)
    assert_same_values(found, wanted, 1e-12)
    assert_same_gradients(found, wanted, 1e-12, 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_float64_unpatched_equals_rows_to_the_models_own_rounding(kind: str) -> None:
    model = tiny_model(kind, torch.float64)
    groups = random_groups(2, levels=3, seed=2)
    weights = random_weights(groups)
    prepare(model, "paths", announce=_quietly)
    wanted, found = by_rows(model, groups, weights), by_trees(model, groups, weights)
    assert_same_values(found, wanted, 1e-6)
    assert_same_gradients(found, wanted, 1e-6, 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_float32_gradients_equal_rows(kind: str, engine: str) -> None:
    model = tiny_model(kind)
    groups = random_groups(2, levels=5, seed=3)
    weights = random_weights(groups)
    prepare(model, engine, announce=_quietly)
    wanted, found = by_rows(model, groups, weights, 1.3), by_trees(model, groups, weights, 1.3)
    assert_same_values(found, wanted, 1e-5)
    assert_same_gradients(found, wanted, 1e-5, 5e-5)


@pytest.mark.parametrize("levels", [1, 2, 3, 4, 5])
def test_trees_of_each_level(levels: int) -> None:
    model = tiny_model("llama", torch.float64)
    groups = random_groups(2, levels, seed=levels)
    weights = random_weights(groups, seed=levels)
    prepare(model, "paths")
    with float64_throughout():
        wanted, found = by_rows(model, groups, weights), by_trees(model, groups, weights)
    assert_same_values(found, wanted, 1e-12)
    assert_same_gradients(found, wanted, 1e-12, 1e-11)


@pytest.fixture(scope="module")
def prepared() -> dict[str, torch.nn.Module]:
    models = {engine: tiny_model("gemma3", torch.float64) for engine in ENGINES}
    for engine, model in models.items():
        prepare(model, engine)
    return models


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1), levels=st.integers(1, 4), engine=st.sampled_from(ENGINES))
def test_random_trees(prepared: dict[str, torch.nn.Module], seed: int, levels: int, engine: str) -> None:
    model = prepared[engine]
    groups = random_groups(1, levels, seed)
    weights = random_weights(groups, seed)
    with float64_throughout():
        wanted, found = by_rows(model, groups, weights), by_trees(model, groups, weights)
    assert_same_values(found, wanted, 1e-12)
    assert_same_gradients(found, wanted, 1e-11, 1e-10)


def ids(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, n)


HAND_MADE = {
    "one rollout": Group(ids(3, 0), (Segment(ids(5, 1)),)),
    "one token": Group(ids(1, 0), (Segment(ids(1, 1)),)),
    "twins": Group(ids(3, 0), (Segment(ids(5, 1)), Segment(ids(5, 1)))),
    "prefix of another": Group(ids(3, 0), (Segment(ids(5, 1)), Segment(ids(5, 1)[:2]), Segment(ids(9, 1)))),
    "an empty completion": Group(ids(3, 0), (Segment(ids(0, 1)), Segment(ids(4, 2)))),
    "fork with one child": Group(ids(3, 0), (Segment(ids(4, 1)), Segment(ids(4, 2), parent=0), Segment(ids(2, 3)))),
    "forced text": Group(
        ids(3, 0),
        (
            Segment(ids(6, 1), sampled=np.array([1, 1, 0, 0, 1, 1], dtype=bool)),
            Segment(ids(3, 2), parent=0),
            Segment(ids(4, 3), parent=0),
        ),
    ),
    "forced here, sampled there": Group(
        ids(3, 0), (Segment(ids(4, 1), sampled=np.array([1, 0, 0, 1], dtype=bool)), Segment(ids(4, 1)))
    ),
    "longer than a run": Group(ids(150, 0), (Segment(ids(140, 1)), Segment(ids(30, 2)), Segment(ids(7, 3), parent=0))),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", HAND_MADE)
def test_hand_made_trees(case: str, engine: str) -> None:
    model = tiny_model("mistral-window", torch.float64)
    groups = [HAND_MADE[case]]
    weights = random_weights(groups)
    prepare(model, engine)
    with float64_throughout():
        wanted, found = by_rows(model, groups, weights), by_trees(model, groups, weights)
    assert_same_values(found, wanted, 1e-12)
    assert_same_gradients(found, wanted, 1e-12, 1e-11)


def test_a_token_shared_by_k_leaves_gets_the_sum_of_their_gradients() -> None:
    """H08: the forward is merged, the targets are not. Every row counts as if it had been trained alone."""
    model = tiny_model("llama", torch.float64)
    prepare(model)
    shared, tails = ids(6, 1), [ids(n, 10 + n) for n in (1, 3, 7)]
    group = Group(ids(2, 0), tuple(Segment(np.concatenate([shared, tail])) for tail in tails))
    weights = [[np.stack([np.full(6 + len(t), 1 / (6 + len(t))), np.zeros(6 + len(t))]) for t in tails]]
    with float64_throughout():
        found = by_trees(model, [group], weights)
        alone = [
            by_rows(model, [Group(group.prompt, (segment,))], [[weights[0][r]]])
            for r, segment in enumerate(group.segments)
        ]
    for name, gradient in found.gradients.items():
        total = torch.stack([one.gradients[name] for one in alone]).sum(0)
        torch.testing.assert_close(gradient, total, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_chain_has_one_value_per_sampled_token(nodes: int) -> None:
    """H01: as many values as tokens after the prompt, none for the first token of the pack."""
    model = tiny_model("llama", torch.float64)
    prepare(model)
    parents = [None, 0, 1]
    group = Group(ids(1, 0), tuple(Segment(ids(4, n + 1), parent=parents[n]) for n in range(nodes)))
    weights = random_weights([group])
    with float64_throughout():
        found, wanted = by_trees(model, [group], weights), by_rows(model, [group], weights)
    assert found.values.shape == (2, 4 * nodes)
    assert len(logprobs(model, pack([PrefixTree.from_group(group)])).logprobs_E) == 4 * nodes
    assert_same_values(found, wanted, 1e-12)


def rows_padded_on_the_left(model: torch.nn.Module, group: Group) -> list[Row]:
    """The mistake of H02: a padded batch without mask or position ids as the baseline."""
    rows = [np.concatenate([group.prompt, group.completion(r)]) for r in range(group.group_size)]
    width = max(map(len, rows))
    ids_RL = torch.from_numpy(np.stack([np.pad(row, (width - len(row), 0)) for row in rows]))
    with torch.no_grad():
        log_p = torch.log_softmax(model(input_ids=ids_RL, use_cache=False).logits[:, :-1].float(), -1)
    own = log_p.gather(2, ids_RL[:, 1:, None])[..., 0]
    entropy = -(log_p.exp() * log_p).sum(-1)
    lengths = [len(group.completion(r)) for r in range(group.group_size)]
    return [Row(own[r, width - 1 - n :], entropy[r, width - 1 - n :]) for r, n in enumerate(lengths)]


def test_the_oracle_runs_each_row_alone_and_the_self_check_stops_with_an_error() -> None:
    """H02: the packed path was right and the padded baseline it was held against was wrong."""
    model = tiny_model("llama").eval()
    group = Group(ids(3, 0), (Segment(ids(7, 1)), Segment(ids(2, 2)), Segment(ids(4, 3), parent=1)))
    seen: list[dict[str, Any]] = []
    watch = model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    with torch.no_grad():
        alone = logprobs_of_rows(model, group)
    watch.remove()
    assert [tuple(call["input_ids"].shape) for call in seen] == [(1, 3 + 7), (1, 3 + 2 + 4)]
    assert all(call.get("attention_mask") is None for call in seen)

    prepare(model)
    with torch.no_grad():
        check(model, group, alone)
        with pytest.raises(CannotServe, match=r"on a tree differs by .* nats from the row alone"):
            check(model, group, rows_padded_on_the_left(model, group))


@pytest.mark.parametrize("budget", [64, 128, 512, 4096])
def test_gradients_do_not_depend_on_the_packs(budget: int) -> None:
    model = tiny_model("qwen3")
    prepare(model)
    groups = random_groups(12, levels=3, seed=9)
    weights = random_weights(groups)
    one, many = by_trees(model, groups, weights), by_trees(model, groups, weights, budget=budget)
    assert_same_gradients(many, one, 1e-5, 5e-5)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_gradients_do_not_depend_on_the_chunk(chunk: int) -> None:
    model = tiny_model("llama-tied", torch.float64)
    prepare(model)
    groups = random_groups(2, levels=3, seed=5)
    weights = random_weights(groups)
    with float64_throughout():
        wanted, found = by_trees(model, groups, weights), by_trees(model, groups, weights, chunk=chunk)
    assert_same_values(found, wanted, 1e-13)
    assert_same_gradients(found, wanted, 1e-12, 1e-11)
