"""The binary tree's credit against the credit of the package, and its policies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import tiny_model

from phloem import credit, presets
from phloem.studies.tree_game import GAMES, LEAVES, SAMPLES, credit_on_edges
from phloem.studies.tree_pretrained import paths_and_places, train_pretrained
from phloem.studies.tree_tabular import leaf_probabilities, train_table
from phloem.studies.tree_transformer import Shape, SmallTransformers, train_transformers
from phloem.tree import Group


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    target = rng.integers(0, LEAVES, 3)
    return rng.multinomial(SAMPLES, rng.dirichlet(np.ones(LEAVES)), 3).astype(float), GAMES[seed].rewards(target)


def edge(turns: list[int]) -> tuple[int, int]:
    """(node, turn) of the edge that the last of these turns takes."""
    node = 0
    for turn in turns[:-1]:
        node = 2 * node + 1 + turn
    return node, turns[-1]


@pytest.mark.parametrize("rule", ["grpo", "lambda-grpo", "lambda-grpo-sn"])
@pytest.mark.parametrize("seed", range(len(GAMES)))
def test_credit_on_edges_is_the_credit_of_the_package(rule, seed):
    counts, rewards = drawn(seed)
    ours, _ = credit_on_edges(counts, rewards, rule)
    for s in range(len(counts)):
        leaves = np.repeat(np.arange(LEAVES), counts[s].astype(int))
        rows = [[(leaf >> (3 - t)) & 1 for t in range(4)] for leaf in leaves.tolist()]
        group = Group.from_rollouts([0], rows, rewards[s][leaves].tolist())
        assigned = credit.assign(group, presets.get(rule))
        expected = np.zeros((LEAVES - 1, 2))
        for r, row in enumerate(rows):
            for t, index in enumerate(assigned.tree.row(r)):
                expected[edge(row[: t + 1])] = assigned.c_pos_T[index] + assigned.c_neg_T[index]
        np.testing.assert_allclose(ours[s], expected, atol=1e-12)


def test_the_control_has_grpos_direction_and_lambdas_size():
    counts, rewards = drawn(0)
    grpo, one = credit_on_edges(counts, rewards, "grpo")
    scaled, factor = credit_on_edges(counts, rewards, "grpo-scaled")
    np.testing.assert_array_equal(grpo, scaled)
    np.testing.assert_array_equal(one, 1.0)
    assert (factor < 1).all()
    assert (factor * 64 == factor.round(12) * 64).all()


def test_equal_rewards_move_nothing():
    counts, _ = drawn(0)
    for rule in ("grpo", "lambda-grpo-sn"):
        assert not credit_on_edges(counts, np.full_like(counts, 0.7), rule)[0].any()


def test_rewards_of_a_game():
    rewards = GAMES[0].rewards(np.array([0b0101]))[0]
    assert rewards[0b0101] == 1.0
    assert (rewards[:8] == np.where(np.arange(8) == 5, 1.0, -0.5)).all()
    assert (rewards[8:] == 0.7).all()


def test_leaf_probabilities_are_products_along_the_path():
    right = np.random.default_rng(0).random((2, 15))
    found = leaf_probabilities(right)
    np.testing.assert_allclose(found.sum(1), 1.0)
    np.testing.assert_allclose(found[:, 0b1011], right[:, 0] * (1 - right[:, 2]) * right[:, 5] * right[:, 12])


def test_self_normalised_lambda_arrives_where_grpo_does_not():
    grpo, own = (train_table(GAMES[1], rule, 1.0, 20, 0) for rule in ("grpo", "lambda-grpo-sn"))
    assert grpo.mean() < 0.1
    assert own.mean() > 0.9


def test_a_node_sees_its_ancestors_only_and_seeds_do_not_mix():
    policies = SmallTransformers(2, Shape(), 0)
    found = policies.logprobs()
    # Node 5 is reached by right, left: its output hangs on the token of node 2, not on its sibling's or child's.
    (gradient,) = torch.autograd.grad(found[0, 5, 0], policies.token)
    assert gradient[0].any()
    assert not gradient[1].any()
    with torch.no_grad():
        policies.place[:, 3, 0] += 1.0  # of the nodes at depth 3
    changed = policies.logprobs()
    torch.testing.assert_close(changed[:, :7], found[:, :7])
    assert not torch.allclose(changed[:, 7:], found[:, 7:])


def test_small_transformers_learn():
    share = train_transformers(GAMES[1], "lambda-grpo", 1e-3, 3, 0)
    assert share.mean() > 0.6


@pytest.mark.model
def test_the_rows_of_a_pretrained_model_hold_every_node_of_the_tree():
    model = tiny_model("llama")
    words = torch.tensor([7, 9])
    rows, place = paths_and_places(3, words)
    found = model(input_ids=rows).logits.flatten(0, 1)[place]
    for node in range(LEAVES - 1):
        path, at = [], node
        while at:
            path.insert(0, int(words[(at - 1) % 2]))
            at = (at - 1) // 2
        alone = model(input_ids=torch.tensor([[3, *path]])).logits[0, -1]
        torch.testing.assert_close(found[node], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.model
def test_a_pretrained_model_is_left_as_it_was():
    class Turns:
        bos_token_id = 3

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return {" left": [7], " right": [9]}[text]

    model = tiny_model("llama")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    share = train_pretrained(model, Turns(), GAMES[1], "lambda-grpo-sn", 3e-3, 0)
    assert 0 <= share <= 1
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
