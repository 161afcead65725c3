"""Token-level GRPO is a process reward model on the prefix tree (arXiv 2509.21154, theorem), and where it is not.

On a tabular policy in float64: one logit per distinct prefix and token, so gradients are exact. The process-reward
objective replaces a rollout's advantage by that of the process set that holds the token.
"""

import numpy as np
import pytest
import torch
from groups import Shape, random_group

from phloem import credit, presets
from phloem.loss import surrogate
from phloem.presets import Rule
from phloem.tree import Group, PrefixTree

VOCABULARY = 4
SHAPE = Shape(levels=4, vocabulary=VOCABULARY, longest=4)
CLIP = 0.2


def flat_group(seed: int) -> Group:
    """Plain rollouts that share prefixes, of different lengths, with a spread of rewards."""
    grown = random_group(np.random.default_rng(seed), SHAPE)
    rows = [grown.completion(r) for r in range(grown.group_size)]
    rewards = np.random.default_rng(seed + 1).choice([0.0, 0.2, 1.0], len(rows)).tolist()
    return Group.from_rollouts(grown.prompt, rows, rewards)


class Tabular:
    """log pi(token | prefix) = log_softmax(theta[prefix])[token], at sampling and now."""

    def __init__(self, tree: PrefixTree, seed: int, moved: float) -> None:
        rng = torch.Generator().manual_seed(seed)
        start = torch.randn(len(tree), VOCABULARY, generator=rng, dtype=torch.float64)
        step = torch.randn(len(tree), VOCABULARY, generator=rng, dtype=torch.float64)
        self.theta = (start + moved * step).requires_grad_()
        at, token = torch.from_numpy(tree.parent_T), torch.from_numpy(tree.tokens_T)
        self.new_T = torch.log_softmax(self.theta[at], -1)[torch.arange(len(tree)), token]
        self.old_T = torch.log_softmax(start[at], -1)[torch.arange(len(tree)), token]

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss, self.theta, retain_graph=True)[0]


def rows_loss(tree: PrefixTree, policy: Tabular, advantage: list[np.ndarray], weight: list[float], clip: float | None):
    """-sum_i w_i sum_t min(rho A_it, clip(rho) A_it), rollout by rollout."""
    loss = torch.zeros((), dtype=torch.float64)
    for r in range(tree.group.group_size):
        index = torch.from_numpy(tree.row(r))
        ratio = (policy.new_T[index] - policy.old_T[index]).exp()
        a = torch.from_numpy(advantage[r])
        bounded = ratio if clip is None else ratio.clamp(1 - clip, 1 + clip)
        loss = loss - weight[r] * torch.minimum(ratio * a, bounded * a).sum()
    return loss


def outcome_advantages(group: Group) -> list[np.ndarray]:
    r = group.rewards_R
    a = (r - r.mean()) / r.std(ddof=1)
    return [np.full(len(group.completion(i)), a[i]) for i in range(len(r))]


def process_advantages(group: Group) -> list[np.ndarray]:
    """(mean reward of all completions with the same first t + 1 tokens - mean) / std, by comparing prefixes."""
    r = group.rewards_R
    rows = [group.completion(i).tolist() for i in range(len(r))]
    found = []
    for row in rows:
        sets = [[j for j, o in enumerate(rows) if o[: t + 1] == row[: t + 1]] for t in range(len(row))]
        found.append(np.array([(r[s].mean() - r.mean()) / r.std(ddof=1) for s in sets]))
    return found


def token_mean(group: Group) -> list[float]:
    total = sum(len(group.completion(r)) for r in range(group.group_size))
    return [1 / total] * group.group_size


def sequence_mean(group: Group) -> list[float]:
    size = group.group_size
    return [1 / (size * max(1, len(group.completion(r)))) for r in range(size)]


def seeds() -> list[int]:
    """Groups with shared prefixes and a spread, so that both sides have something to differ on."""
    found = []
    for seed in range(200):
        group = flat_group(seed)
        tree = PrefixTree.from_group(group)
        if group.group_size >= 4 and np.ptp(group.rewards_R) > 0 and tree.Z > 1.5 * tree.U:
            found.append(seed)
    return found[:25]


def sides(seed: int, moved: float, weight, clip: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    group = flat_group(seed)
    tree = PrefixTree.from_group(group)
    policy = Tabular(tree, seed, moved)
    outcome = rows_loss(tree, policy, outcome_advantages(group), weight(group), clip)
    process = rows_loss(tree, policy, process_advantages(group), weight(group), clip)
    return policy.gradient(outcome), policy.gradient(process)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / max(float(a.norm()), 1e-12))


def test_there_are_enough_cases():
    assert len(seeds()) == 25


@pytest.mark.parametrize("seed", seeds())
def test_at_one_update_grpo_is_the_process_reward_objective(seed):
    for clip in (CLIP, None):
        outcome, process = sides(seed, 0.0, token_mean, clip)
        torch.testing.assert_close(outcome, process, rtol=1e-12, atol=1e-15)
        assert outcome.norm() > 0


@pytest.mark.parametrize("seed", seeds())
def test_without_clipping_it_holds_for_further_updates(seed):
    outcome, process = sides(seed, 0.5, token_mean, None)
    torch.testing.assert_close(outcome, process, rtol=1e-12, atol=1e-15)


def test_under_clipping_it_fails():
    gaps = [relative(*sides(seed, 0.5, token_mean, CLIP)) for seed in seeds()]
    assert sum(gap > 0.01 for gap in gaps) > 20


def test_with_the_sequence_mean_it_fails():
    gaps = [relative(*sides(seed, 0.0, sequence_mean, None)) for seed in seeds()]
    assert sum(gap > 0.01 for gap in gaps) > 20


@pytest.mark.parametrize("moved", [0.0, 0.5])
@pytest.mark.parametrize("seed", seeds()[:10])
def test_the_tree_carries_the_outcome_objective_even_where_the_theorem_fails(seed, moved):
    """The clip fold is exact: credit on the tree equals the row objective under clipping and any normaliser."""
    group = flat_group(seed)
    tree = PrefixTree.from_group(group)
    for name, weight in (("grpo", token_mean), ("grpo-seq", sequence_mean)):
        policy = Tabular(tree, seed, moved)
        rule: Rule = presets.get(name, eps=0.0)
        assigned = credit.assign(group, rule)
        c_pos, c_neg = torch.from_numpy(assigned.c_pos_T), torch.from_numpy(assigned.c_neg_T)
        folded = surrogate(policy.new_T, policy.old_T, c_pos, c_neg, CLIP, CLIP).sum()
        rows = rows_loss(tree, policy, outcome_advantages(group), weight(group), CLIP)
        torch.testing.assert_close(folded, rows, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(policy.gradient(folded), policy.gradient(rows), rtol=1e-11, atol=1e-14)
