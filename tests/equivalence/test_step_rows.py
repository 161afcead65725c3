"""A whole update on packed trees against each rollout alone: credit, loss and every parameter's gradient.

The rows side uses nothing of the tree but `credit.to_rows`: what a trainer that works on rows would compute. Old
and reference logprobs are moved away from the current ones, so that clipping and KL act.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from groups import Shape, random_group
from tiny_models import float64_throughout, tiny_model
from update_machine import Plain

from phloem import credit, presets
from phloem.forward import logprobs_of_rows, prepare
from phloem.train.step import Batch, Objective, make_batch, update
from phloem.tree import Group, PrefixTree

pytestmark = pytest.mark.model

SHAPE = Shape(levels=5, vocabulary=5, longest=4, unscored=True, forced=True, prompt=3)


def step_groups(seed: int, number: int = 4) -> list[Group]:
    rng = np.random.default_rng(seed)
    found: list[Group] = []
    while len(found) < number:
        group = random_group(rng, SHAPE)
        if 3 <= group.group_size <= 20 and group.scored().group_size > 1:
            found.append(group)
    return found


def moved(key: tuple[int, ...], salt: int) -> float:
    """A shift of a logprob that depends on the prefix alone, the same in both layouts."""
    return float(np.random.default_rng([salt, *key]).normal(scale=0.4))


def prefixes(tree: PrefixTree) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens_T.tolist(), tree.parent_T.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def with_moved_logprobs(model: torch.nn.Module, batch: Batch, objective: Objective) -> Batch:
    """The batch with old, reference and sampler's logprobs at a distance from the current ones."""
    from phloem.forward import logprobs

    packs = []
    for part in batch.packs:
        with torch.no_grad():
            now = logprobs(model, part.pack, objective.temperature).logprobs_E
        keys = [key for t in part.pack.trees for key, own in zip(prefixes(t), t.sampled_T, strict=True) if own]
        shift = [torch.tensor([moved(key, salt) for key in keys]).to(now) for salt in (1, 2, 3)]
        parts = {n: getattr(part, n).to(now) for n in ("c_pos_E", "c_neg_E", "c_kl_E", "count_E")}
        packs.append(replace(part, old_E=now + shift[0], ref_E=now + shift[1], sampled_E=now + shift[2], **parts))
    return replace(batch, packs=tuple(packs))


def rows_update(model: torch.nn.Module, groups: list[Group], objective: Objective) -> float:
    """The gradient of the step, one rollout at a time; returns the loss."""
    rule, loss = objective.rule, 0.0
    totals = credit.Totals.of([PrefixTree.from_group(g.scored()) for g in groups])
    for group in groups:
        given = credit.to_rows(credit.assign(group, rule, totals), group)
        for r, row in enumerate(logprobs_of_rows(model, group, objective.temperature)):
            ids = [*group.prompt.tolist(), *group.completion(r).tolist()]
            keys = [tuple(ids[: len(group.prompt) + n + 1]) for n in range(len(row.logprobs_L))]
            if not keys:
                continue
            now = row.logprobs_L
            old, ref, sampled = (
                (now + torch.tensor([moved(k, salt) for k in keys]).to(now)).detach() for salt in (1, 2, 3)
            )
            a, w, k = (torch.from_numpy(getattr(given[r], n)).to(now) for n in ("advantage", "weight", "kl_weight"))
            ratio = (now - old).exp()
            low = 0.0 if rule.clip_low is None else 1 - rule.clip_low
            high = float("inf") if rule.clip_high is None else 1 + rule.clip_high
            q = (ref - now).exp()
            if objective.tis_cap is not None:
                w = w * (old - sampled).exp().clamp(max=objective.tis_cap)
            terms = -w * torch.minimum(ratio * a, ratio.clamp(low, high) * a)
            terms = terms + k * (rule.beta * (q - q.log() - 1) - objective.entropy * row.entropy_L)
            terms.sum().backward()
            loss += float(terms.detach().sum())
    return loss


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], overall: float, each: float) -> None:
    whole = torch.stack([g.norm() for g in wanted.values()]).norm()
    gaps = {n: (found[n] - g).norm() for n, g in wanted.items()}
    assert torch.stack(list(gaps.values())).norm() <= overall * whole
    for name, gap in gaps.items():
        assert gap <= each * max(wanted[name].norm(), 1e-3 * whole), name


@pytest.mark.parametrize("name", presets.names())
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_every_preset_with_clipping_kl_and_entropy_in_float64(kind, name):
    compare_with_rows(kind, name, pack_tokens=10**6)


@pytest.mark.parametrize("name", ["grpo", "lambda-grpo-ma"])
def test_trees_over_the_budget_in_float64(name):
    compare_with_rows("gemma3", name, pack_tokens=9)


def compare_with_rows(kind: str, name: str, pack_tokens: int) -> None:
    model = tiny_model(kind, torch.float64)
    prepare(model, "paths", announce=lambda _: None)
    objective = Objective(presets.get(name, max_completion_tokens=20, beta=0.1), temperature=0.8, entropy=0.01)
    groups = step_groups(seed=len(name))
    with float64_throughout():
        wanted_loss = rows_update(model, groups, objective)
        wanted = gradients(model)
        model.zero_grad()
        batch = make_batch(groups, objective, pack_tokens, "cpu")
        batch = with_moved_logprobs(model, batch, objective)
        exact = exact_credit(batch, groups, objective)
        _, sums = update(model, exact, objective, Plain())
    assert any(len(part.pack) > pack_tokens for part in batch.packs) == (pack_tokens < 10)
    assert sums.clipped_high + sums.clipped_low > 0 or objective.rule.clip_low is None
    assert sums.loss == pytest.approx(wanted_loss, rel=1e-10, abs=1e-12)
    assert_close(gradients(model), wanted, 1e-11, 1e-10)


@pytest.mark.parametrize("name", presets.names())
def test_truncated_importance_sampling_in_float64(name):
    """The weight multiplies the credit of each token, positive and negative, and leaves KL and entropy alone."""
    model = tiny_model("llama", torch.float64)
    prepare(model, "paths", announce=lambda _: None)
    objective = Objective(presets.get(name, max_completion_tokens=20, beta=0.1), entropy=0.01, tis_cap=1.3)
    groups = step_groups(seed=3)
    with float64_throughout():
        wanted_loss = rows_update(model, groups, objective)
        wanted = gradients(model)
        model.zero_grad()
        batch = with_moved_logprobs(model, make_batch(groups, objective, 10**6, "cpu"), objective)
        _, sums = update(model, exact_credit(batch, groups, objective), objective, Plain())
    assert sums.loss == pytest.approx(wanted_loss, rel=1e-10, abs=1e-12)
    assert_close(gradients(model), wanted, 1e-11, 1e-10)
    weights = torch.cat([objective.mismatch(part.old_E, part.sampled_E) for part in batch.packs])
    assert weights.min() < 0.9
    assert (weights == 1.3).any()
    off = replace(objective, tis_cap=None)
    model.zero_grad()
    _, plain = update(model, exact_credit(batch, groups, objective), off, Plain())
    assert plain.metrics()["tis_weight"] == 1.0
    assert plain.loss != pytest.approx(wanted_loss, rel=1e-3)


def exact_credit(batch: Batch, groups: list[Group], objective: Objective) -> Batch:
    """The batch's credit in float64 (training rounds it to float32)."""
    of_tree = {id(c.tree): c for c in batch.credits}
    packs = []
    for part in batch.packs:
        own = [of_tree[id(t)] for t in part.pack.trees]
        exact = {
            f"{n}_E": torch.from_numpy(np.concatenate([getattr(c, f"{n}_T")[c.tree.sampled_T] for c in own]))
            for n in ("c_pos", "c_neg", "c_kl")
        }
        packs.append(replace(part, **exact))
    return replace(batch, packs=tuple(packs))


@pytest.mark.parametrize("name", ["grpo", "lambda-grpo", "grpo-ma"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "gemma3"])
def test_float32_gradients_as_training_takes_them(kind, name):
    model = tiny_model(kind)
    prepare(model, "paths", announce=lambda _: None)
    objective = Objective(presets.get(name, beta=0.1))
    groups = step_groups(seed=7)
    rows_update(model, groups, objective)
    wanted = gradients(model)
    model.zero_grad()
    batch = with_moved_logprobs(model, make_batch(groups, objective, 10**6, "cpu"), objective)
    update(model, batch, objective, Plain())
    assert_close(gradients(model), wanted, 1e-5, 5e-5)


@pytest.mark.parametrize("name", ["grpo", "dapo", "lambda-grpo-sn", "grpo-ma"])
def test_one_pack_or_many_give_the_same_gradient(name):
    """A13: completions of any length in micro-batches of any size; the normaliser belongs to the step."""
    model = tiny_model("llama")
    prepare(model, "paths", announce=lambda _: None)
    objective = Objective(presets.get(name, beta=0.05))
    rng = np.random.default_rng(0)
    groups = [
        Group.from_rollouts(
            rng.integers(0, 50, 5), [rng.integers(0, 50, n) for n in (1, 9, 20, 26)], rng.random(4).tolist()
        )
        for _ in range(8)
    ]
    found = []
    for budget in (64, 128, 256, 4096):
        model.zero_grad()
        batch = with_moved_logprobs(model, make_batch(with_logprobs(groups), objective, budget, "cpu"), objective)
        update(model, batch, objective, Plain())
        found.append((len(batch.packs), gradients(model)))
    assert [n for n, _ in found] == [8, 4, 2, 1]
    for _, other in found[1:]:
        assert_close(other, found[0][1], 1e-5, 1e-5)


def with_logprobs(groups: list[Group]) -> list[Group]:
    return [Group(g.prompt, tuple(replace(s, logprobs=np.zeros(len(s))) for s in g.segments)) for g in groups]


def test_completions_of_one_and_nine_tokens_in_one_micro_batch_or_two():
    """A13, to the letter."""
    model = tiny_model("llama")
    prepare(model, "paths", announce=lambda _: None)
    objective = Objective(presets.get("dapo"))
    groups = with_logprobs(
        [
            Group.from_rollouts([1], [[2], [3]], [1.0, 0.0]),
            Group.from_rollouts([4], [[5] * 9, [6] * 9], [0.0, 1.0]),
        ]
    )
    found = []
    for budget in (4096, 20):
        model.zero_grad()
        batch = make_batch(groups, objective, budget, "cpu")
        update(model, batch, objective, Plain())
        found.append((len(batch.packs), gradients(model)))
    assert [n for n, _ in found] == [1, 2]
    assert_close(found[1][1], found[0][1], 1e-5, 1e-5)


def test_a_first_update_has_ratio_one_and_a_loss_near_zero_with_a_gradient():
    """A01: beta 0, one update, rewards [1, 0, 0, 0]: the loss is no sign of progress, the gradient norm is."""
    model = tiny_model("llama")
    prepare(model, "paths", announce=lambda _: None)
    objective = Objective(presets.get("grpo"))
    groups = with_logprobs([Group.from_rollouts([1, 2], [[3, 4], [5, 6], [7, 8], [3, 9]], [1.0, 0.0, 0.0, 0.0])])
    _, sums = update(model, make_batch(groups, objective, 4096, "cpu"), objective, Plain())
    metrics = sums.metrics()
    assert abs(metrics["loss"]) < 1e-6
    assert metrics["ratio"] == 1.0
    assert torch.stack([g.norm() for g in gradients(model).values()]).norm() > 1e-3
