"""`credit.assign` against its slow twin, over the whole rule space."""

from itertools import product
from typing import get_args

import numpy as np
import pytest
from groups import Shape, groups, random_group
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem import credit, presets
from phloem.credit.rows import credit_by_prefix
from phloem.presets import Baseline, Normaliser, Rule, Scale, Share, Unit
from phloem.tree import Group, PrefixTree

SHAPE = Shape(levels=4, unscored=True, forced=True)

RULES = st.builds(
    Rule,
    unit=st.sampled_from(get_args(Unit)),
    baseline=st.sampled_from(get_args(Baseline)),
    scale=st.sampled_from(get_args(Scale)),
    ddof=st.sampled_from([0, 1]),
    eps=st.sampled_from([0.0, 1e-4]),
    share=st.sampled_from(get_args(Share)),
    kl_share=st.sampled_from(get_args(Share)),
    normaliser=st.sampled_from(get_args(Normaliser)),
    max_completion_tokens=st.just(50),
)


def by_prefix(assigned: credit.Credit) -> dict[tuple[int, ...], tuple[float, float, float]]:
    tree, rows = assigned.tree, {}
    for r in range(tree.group.group_size):
        completion = tree.group.completion(r).tolist()
        for n, token in enumerate(tree.row(r)):
            if tree.sampled_T[token]:
                c = (assigned.c_pos_T[token], assigned.c_neg_T[token], assigned.c_kl_T[token])
                rows[tuple(completion[: n + 1])] = tuple(float(x) for x in c)
    return rows


def assert_same(group: Group, rule: Rule, totals: credit.Totals) -> None:
    fast = by_prefix(credit.assign(group, rule, totals))
    slow = credit_by_prefix(group, rule, totals.n_groups, totals.Z, totals.U)
    assert fast.keys() == slow.keys()
    for prefix, expected in slow.items():
        np.testing.assert_allclose(fast[prefix], expected, rtol=1e-12, atol=1e-14)


@settings(max_examples=400)
@given(groups(SHAPE), RULES)
def test_credit_equals_the_loop_over_rollouts(group: Group, rule: Rule):
    assert_same(group, rule, credit.Totals(n_groups=3, Z=211, U=97))


@pytest.mark.parametrize(
    ("unit", "baseline", "scale", "normaliser"),
    list(product(get_args(Unit), get_args(Baseline), get_args(Scale), get_args(Normaliser))),
)
def test_every_corner_of_the_rule_space(unit, baseline, scale, normaliser):
    rule = Rule(unit, baseline, scale, normaliser=normaliser, share="once", max_completion_tokens=9)
    group = random_group(np.random.default_rng(5), SHAPE)
    assert_same(group, rule, credit.Totals.of([PrefixTree.from_group(group.scored())]))


@pytest.mark.parametrize("size", [5e-324, 1e-300, 1e-170, 1e-30, -1.0, 1e8, 3e38])
@pytest.mark.parametrize("offset", [0.0, 1e8])
@settings(max_examples=20)
@given(group=groups(SHAPE), rule=RULES)
def test_rewards_of_any_size_give_the_same_finite_credit(size: float, offset: float, group: Group, rule: Rule):
    sized = [None if np.isnan(r) else float(offset + size * np.round(r)) for r in group.rewards_R]
    group = group.with_rewards(sized)
    fast, slow = by_prefix(credit.assign(group, rule)), credit_by_prefix(group, rule)
    assert fast.keys() == slow.keys()
    largest = max((abs(c) for cs in slow.values() for c in cs[:2]), default=0.0)
    for prefix, expected in slow.items():
        assert np.isfinite(fast[prefix]).all()
        np.testing.assert_allclose(fast[prefix], expected, rtol=1e-11, atol=1e-11 * largest)


@settings(max_examples=200)
@given(groups(SHAPE), RULES)
def test_rows_add_up_to_the_tree(group: Group, rule: Rule):
    """What `to_rows` hands to a row-by-row trainer sums, over rows, to the credit of each tree token."""
    assigned = credit.assign(group, rule)
    rows = credit.to_rows(assigned, group)
    assert len(rows) == group.group_size
    summed: dict[tuple[int, ...], np.ndarray] = {}
    for r, row in enumerate(rows):
        completion = group.completion(r).tolist()
        assert len(row.weight) == len(completion)
        if np.isnan(group.rewards_R[r]):
            assert not row.weight.any()
            assert not row.advantage.any()
            assert not row.kl_weight.any()
        for n in range(len(completion)):
            w, a, k = row.weight[n], row.advantage[n], row.kl_weight[n]
            term = np.array([w * max(a, 0.0), w * min(a, 0.0), k])
            summed[tuple(completion[: n + 1])] = summed.get(tuple(completion[: n + 1]), np.zeros(3)) + term
    expected = by_prefix(assigned)
    for prefix, total in summed.items():
        np.testing.assert_allclose(total, expected.get(prefix, (0, 0, 0)), rtol=1e-11, atol=1e-14)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([n for n in presets.names() if n != "dr-grpo"]))
def test_the_order_of_rollouts_does_not_change_the_credit(seed: int, name: str):
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 3, rng.integers(0, 6)) for _ in range(8)]
    rewards = rng.choice([0.0, 0.3, 1.0], 8)
    order = rng.permutation(8)
    one = credit.assign(Group.from_rollouts([1], rows, rewards.tolist()), presets.get(name))
    other = credit.assign(
        Group.from_rollouts([1], [rows[i] for i in order], rewards[order].tolist()), presets.get(name)
    )
    for field in ("c_pos_T", "c_neg_T", "c_kl_T"):
        np.testing.assert_allclose(getattr(one, field), getattr(other, field), rtol=1e-12, atol=1e-15)
