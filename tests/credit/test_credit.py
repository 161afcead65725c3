"""Hand numbers, the worked example of lambda-GRPO and the decided cases."""

import numpy as np
import pytest
from groups import k_by_m

from phloem import credit, presets
from phloem.presets import Rule
from phloem.tree import Group, PrefixTree, Segment
from phloem.tree.structure import process_sets

LETTERS = "_JKLMNOPQR"
WORKED = ("PQ", "PR", "JKLM", "JKLN", "JKLO", "N")
WORKED_REWARDS = [0.5, 0.5, 1.0, 0.0, 0.0, 0.5]


def words(*rows: str, rewards: list[float | None]) -> Group:
    return Group.from_rollouts([0], [[LETTERS.index(c) for c in row] for row in rows], rewards)


def plain(rewards: list[float | None]) -> Group:
    """Rollouts of two tokens that share nothing."""
    return Group.from_rollouts([0], [[10 + 2 * i, 11 + 2 * i] for i in range(len(rewards))], rewards)


@pytest.mark.parametrize(
    ("preset", "advantage", "weight"),
    [
        ("grpo", (1.4997, -0.4999), 1 / 8),
        ("grpo-seq", (1.4997, -0.4999), 1 / 8),
        ("dr-grpo", (0.75, -0.25), 1 / 40),
        ("dapo", (1.4997, -0.4999), 1 / 8),
        ("rloo", (1.0, -1 / 3), 1 / 4),
        ("lambda-grpo", (1.4997, -0.4999), 1 / 8),
        ("lambda-grpo-sn", (1.4997, -0.4999), 1 / 8),
        ("grpo-ma", (1.4997, -0.4999), 1 / 8),
        ("lambda-grpo-ma", (1.4997, -0.4999), 1 / 8),
    ],
)
def test_hand_numbers_of_every_preset(preset, advantage, weight):
    """Rewards [1, 0, 0, 0], four rollouts of two tokens, limit 10: as on each preset's page."""
    rule = presets.get(preset, max_completion_tokens=10)
    assigned = credit.assign(plain([1.0, 0.0, 0.0, 0.0]), rule)
    np.testing.assert_allclose(assigned.advantage_B, [advantage[0], *[advantage[1]] * 3], atol=5e-5)
    np.testing.assert_allclose(assigned.weight_B, weight)


def test_the_worked_example_of_lambda_grpo():
    group = words(*WORKED, rewards=WORKED_REWARDS)
    assigned = credit.assign(group, presets.get("grpo", eps=0.0))
    np.testing.assert_allclose(assigned.advantage_B, [0.221, 0.221, 1.550, -1.107, -1.107, 0.221], atol=5e-4)


def test_the_frequency_flaw_of_the_worked_example():
    """JKL leads to the best rollout and is pushed down three times: its rewards (1, 0, 0) lie below the mean."""
    group = words(*WORKED, rewards=WORKED_REWARDS)
    tree = PrefixTree.from_group(group)
    shared, first, stop = next(s for s in process_sets(tree) if s[0] == {2, 3, 4})
    values = [WORKED_REWARDS[r] for r in shared]
    step = (np.mean(values) - np.mean(WORKED_REWARDS)) / np.std(WORKED_REWARDS, ddof=1)
    assert round(float(step), 2) == -0.22
    token = tree.row(2)[first:stop]
    for name, times in (("grpo", 3), ("lambda-grpo", 1)):
        assigned = credit.assign(group, presets.get(name, eps=0.0))
        reaching = (assigned.c_pos_T + assigned.c_neg_T)[token] * tree.Z
        np.testing.assert_allclose(reaching, times * step)


def test_lambda_weights_sum_to_the_number_of_distinct_tokens():
    group = words("JKLM", "JKLM", "JKN", "", "J", rewards=[1, 0, 0, 1, 0.5])
    tree = PrefixTree.from_group(group)
    weights = [1.0 / tree.count_T[token] for r in range(5) for token in tree.row(r)]
    assert sum(weights) == pytest.approx(tree.U)
    assigned = credit.assign(group, presets.get("lambda-grpo-sn"))
    assert assigned.c_kl_T.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_table_of_one_k_by_m_tree_under_every_method(ddof):
    """Coefficient on grad log pi of one distinct thought and answer token, on-policy, no accidental overlap."""
    rewards = np.array([[1, 0, 0, 1], [0, 0, 0, 1], [1, 1, 1, 0], [0, 0, 1, 0]], dtype=float)
    group = k_by_m(rewards, thought=[2, 3, 5, 4])
    tree = PrefixTree.from_group(group)
    k, m = rewards.shape
    V, mu, s = rewards.mean(1), rewards.mean(), rewards.std(ddof=ddof)
    s_V = V.std(ddof=ddof)
    T = np.array([len(x) for x in group.segments[:k]])
    L = np.array([len(x) for x in group.segments[k:]]).reshape(k, m)
    Z, U = (T[:, None] + L).sum(), T.sum() + L.sum()
    a = (rewards - mu) / s
    assert (tree.Z, tree.U) == (Z, U)
    table = {
        "grpo": (m * (V - mu) / (s * Z), (rewards - mu) / (s * Z)),
        "grpo-seq": ((a / (T[:, None] + L)).sum(1) / (k * m), a / (k * m * (T[:, None] + L))),
        "lambda-grpo": ((V - mu) / (s * Z), (rewards - mu) / (s * Z)),
        "lambda-grpo-sn": ((V - mu) / (s * U), (rewards - mu) / (s * U)),
        "grpo-ma": ((V - mu) / (s_V * k * T), (rewards - mu) / (s * k * m * L)),
    }
    for name, (thought, answer) in table.items():
        assigned = credit.assign(group, presets.get(name, ddof=ddof, eps=0.0))
        reaching = assigned.c_pos_T + assigned.c_neg_T
        for i in range(k):
            np.testing.assert_allclose(reaching[tree.segment_index(i)], thought[i], rtol=1e-12, atol=1e-16)
            for j in range(m):
                index = tree.segment_index(k + i * m + j)
                np.testing.assert_allclose(reaching[index], answer[i, j], rtol=1e-12, atol=1e-16)


def test_lambda_shrinks_the_thoughts_that_grpo_ma_scales_to_unit_variance():
    rng = np.random.default_rng(0)
    rewards = rng.integers(0, 2, (4, 4)).astype(float)
    group = k_by_m(rewards)
    V, s = rewards.mean(1), rewards.std()
    ma = credit.assign(group, presets.get("grpo-ma", ddof=0, eps=0.0)).advantage_B[:4]
    np.testing.assert_allclose((V - rewards.mean()) / s, ma * V.std() / s)
    assert s**2 == pytest.approx(V.var() + rewards.var(axis=1).mean())


# Decided cases


@pytest.mark.parametrize("preset", ["grpo", "rloo", "lambda-grpo", "grpo-ma"])
@pytest.mark.parametrize("rewards", [[None, None, 1.0], [None, 1.0, 0.0], [None, None, None]])
def test_unscored_rollouts_leave_before_anything_is_counted(preset, rewards):
    """A03: they are out of mean and spread, a lone scored rollout has advantage 0, nothing is NaN."""
    assigned = credit.assign(plain(rewards), presets.get(preset))
    kept = [r for r in rewards if r is not None]
    alone = credit.assign(plain(kept), presets.get(preset))
    assert np.isfinite(assigned.c_pos_T).all()
    assert np.isfinite(assigned.c_neg_T).all()
    np.testing.assert_array_equal(assigned.advantage_B, alone.advantage_B)
    np.testing.assert_array_equal(assigned.weight_B, alone.weight_B)
    if len(kept) == 1:
        assert assigned.advantage_B.tolist() == [0.0]
    rows = credit.to_rows(assigned, plain(rewards))
    assert [bool(row.weight.any()) for row in rows] == [r is not None for r in rewards]


@pytest.mark.parametrize("preset", [n for n in presets.names() if n != "dr-grpo"])
@pytest.mark.parametrize(("value", "times"), [(0.1, 8), (0.7, 8), (1 / 3, 6)])
def test_equal_rewards_have_advantage_exactly_zero(preset, value, times):
    """A06: rounding of equal float rewards is not a spread, and the group counts as zero-spread."""
    single = np.full(times, value, dtype=np.float32)
    double = np.array([value] * (times - 1) + [float(np.float32(value))])
    for rewards in (single, double):
        assigned = credit.assign(plain([float(r) for r in rewards]), presets.get(preset, beta=0.1))
        assert assigned.zero_spread
        assert not assigned.advantage_B.any()
        assert not assigned.c_pos_T.any()
        assert not assigned.c_neg_T.any()
        assert assigned.c_kl_T.sum() > 0


def test_a_small_real_spread_is_kept():
    assigned = credit.assign(plain([0.1, 0.1001]), presets.get("grpo", eps=0.0))
    assert not assigned.zero_spread
    np.testing.assert_allclose(np.abs(assigned.advantage_B), 1 / np.sqrt(2))


def test_equal_thoughts_get_nothing_and_answers_still_learn():
    """s_V = 0 with s > 0."""
    assigned = credit.assign(k_by_m(np.array([[1.0, 0.0], [0.0, 1.0]])), presets.get("grpo-ma"))
    assert not assigned.zero_spread
    assert assigned.level_is_flat(1)
    assert not assigned.level_is_flat(2)
    assert assigned.advantage_B[:2].tolist() == [0.0, 0.0]
    assert np.abs(assigned.advantage_B[2:]).min() > 0.8


def test_thought_values_that_differ_by_rounding_are_equal():
    rewards = np.array([[0.1, 0.1, 0.7], [0.7, 0.1, 0.1], [0.1, 0.7, 0.1]])
    assigned = credit.assign(k_by_m(rewards), presets.get("grpo-ma", eps=0.0))
    assert assigned.advantage_B[:3].tolist() == [0.0, 0.0, 0.0]


def test_one_answer_per_thought_gives_the_advantages_of_grpo():
    rewards = np.array([[1.0], [0.0], [0.0], [1.0]])
    group = k_by_m(rewards)
    ma = credit.assign(group, presets.get("grpo-ma")).advantage_B
    flat = credit.assign(group, presets.get("grpo")).advantage_B
    np.testing.assert_array_equal(ma[:4], flat)
    np.testing.assert_array_equal(ma[4:], flat)
    ma_credit = credit.assign(group, presets.get("grpo-ma"))
    flat_credit = credit.assign(group, presets.get("grpo"))
    assert not np.allclose(ma_credit.c_pos_T, flat_credit.c_pos_T)  # segments are averaged apart


def test_one_thought_learns_from_its_answers_alone():
    assigned = credit.assign(k_by_m(np.array([[1.0, 0.0, 0.0]])), presets.get("grpo-ma"))
    assert assigned.advantage_B[0] == 0.0
    assert assigned.advantage_B[1] > 0 > assigned.advantage_B[2]


def test_a_truncated_thought_counts_among_thoughts_and_not_among_answers():
    def ids(*tokens: int) -> np.ndarray:
        return np.array(tokens)

    group = Group(
        ids(1),
        (
            Segment(ids(2, 3)),
            Segment(ids(4, 5, 6), reward=0.0),
            Segment(ids(7), parent=0, reward=1.0),
            Segment(ids(8), parent=0, reward=0.0),
        ),
    )
    assigned = credit.assign(group, presets.get("grpo-ma", eps=0.0))
    np.testing.assert_allclose(assigned.advantage_B, np.array([1, -1, 1, -1]) / np.sqrt(2))
    np.testing.assert_allclose(assigned.weight_B, [1 / 4, 1 / 6, 1 / 2, 1 / 2])


def test_forced_text_is_context_only():
    sampled = np.array([True, True, False])
    group = Group(
        np.array([1]),
        (Segment(np.array([2, 3, 4]), sampled=sampled, reward=1.0), Segment(np.array([5]), reward=0.0)),
    )
    assigned = credit.assign(group, presets.get("grpo-seq"))
    forced = assigned.tree.segment_index(0)[2]
    assert assigned.c_pos_T[forced] == assigned.c_kl_T[forced] == 0
    assert assigned.branches.length_B.tolist() == [2, 1]
    assert (assigned.tree.Z, assigned.tree.U) == (3, 3)


def test_answers_that_share_their_opening_are_counted_once_only_under_the_lambda_weights():
    """Section C, 4: the frequency flaw survives in GRPO-MA where answers of one thought share a prefix."""

    def ids(*tokens: int) -> np.ndarray:
        return np.array(tokens)

    opening = 7
    segments = (
        Segment(ids(2)),
        *(Segment(ids(opening, 8 + j), parent=0, reward=float(j == 0)) for j in range(4)),
    )
    group = Group(ids(1), segments)
    tree = PrefixTree.from_group(group)
    token = tree.segment_index(1)[0]
    assert tree.tokens_T[token] == opening
    plain_ma = credit.assign(group, presets.get("grpo-ma", baseline="none", scale="none"))
    once = credit.assign(group, presets.get("lambda-grpo-ma", baseline="none", scale="none"))
    assert plain_ma.c_kl_T[token] == pytest.approx(4 * once.c_kl_T[token])
    assert plain_ma.c_pos_T[token] == pytest.approx(4 * once.c_pos_T[token])


def test_normalisers_count_the_whole_step():
    groups = [plain([1.0, 0.0]), Group.from_rollouts([0], [[5], [6, 7, 8]], [0.0, 1.0])]
    totals = credit.Totals.of([PrefixTree.from_group(g) for g in groups])
    assert totals == credit.Totals(n_groups=2, Z=8, U=8)
    for name in ("grpo", "grpo-seq", "dapo", "lambda-grpo", "lambda-grpo-sn", "grpo-ma"):
        whole = [credit.assign(g, presets.get(name), totals).c_kl_T.sum() for g in groups]
        assert sum(whole) == pytest.approx(1.0), name
    unscored = Group.from_rollouts([0], [[5], [6]], [None, None])
    assert credit.Totals.of([PrefixTree.from_group(unscored.scored())]) == credit.Totals(0, 0, 0)


def test_errors_name_the_thing_and_the_remedy():
    with pytest.raises(ValueError, match="max_completion_tokens"):
        credit.assign(plain([1.0, 0.0]), presets.get("dr-grpo"))
    with pytest.raises(ValueError, match="did you mean 'lambda-grpo'"):
        presets.get("lamda-grpo")
    with pytest.raises(ValueError, match="did you mean 'baseline'"):
        presets.get("grpo", base_line="group")
    with pytest.raises(ValueError, match="choose one of rollout, segment"):
        Rule(unit="leaf")  # type: ignore[arg-type]
    assigned = credit.assign(plain([1.0, 0.0]), presets.get("grpo"))
    with pytest.raises(ValueError, match="not the one"):
        credit.to_rows(assigned, plain([1.0, 0.0, 0.5]))
