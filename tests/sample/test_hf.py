"""The tree sampler against plain forwards of the same model, on tiny random models of every served type."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from groups import flat
from tiny_models import KINDS, tiny_model
from tiny_tokenizers import byte_level

from phloem.config import SampleConfig
from phloem.sample import ForkPlan, HFSampler, SampleError, Stage
from phloem.tree import Finish, Group, PrefixTree

pytestmark = pytest.mark.model

TOKENIZER = byte_level(alphabet="abck<>/xĊ")
SIZE = len(TOKENIZER)
EOS = (1, 3)
PROMPTS = [np.array([0, 5, 6, 7, 5, 8]), np.array([4, 9]), np.array([0, 7, 7, 7, 9, 10, 11, 5, 6, 4, 8])]
KEYS = [(7, i) for i in range(len(PROMPTS))]
TREE = ForkPlan((Stage(3, 8, "x"), Stage(2, 5)))
DEEP = ForkPlan((Stage(2, 6, "x"), Stage(2, 2), Stage(3, 6, "k"), Stage(2, 4)))


def sampler(kind: str = "llama", seed: int = 0, eos_ids=EOS, model=None, **config) -> HFSampler:
    model = tiny_model(kind, vocab_size=SIZE, initializer_range=0.08) if model is None else model
    return HFSampler(model, TOKENIZER, SampleConfig(**config), eos_ids=eos_ids, seed=seed)


def logprobs_of(model, group: Group, rollout: int, temperature: float) -> np.ndarray:
    ids = torch.from_numpy(np.concatenate([group.prompt, group.completion(rollout)]))
    first = len(group.prompt)
    with torch.no_grad():
        logits = model(ids[None]).logits[0, first - 1 : -1].double() / temperature
    return logits.log_softmax(-1)[range(len(logits)), ids[first:]].numpy()


def sampled_logprobs(group: Group, rollout: int) -> np.ndarray:
    return np.concatenate([group.segments[s].logprobs for s in group.path(group.leaves[rollout])])


def same(one: list[Group], other: list[Group]) -> bool:
    return flat(one) == flat(other)


@pytest.mark.parametrize("plan", [TREE, DEEP, ForkPlan.plain(4, 9)], ids=["tree", "deep", "plain"])
@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_those_of_each_row_alone(kind, plan):
    for temperature in (0.6, 1.0, 1.3):
        own = sampler(kind, temperature=temperature, max_rows=7)
        model = tiny_model(kind, vocab_size=SIZE, initializer_range=0.08).eval()
        for group in own.sample(PROMPTS, plan, KEYS):
            for rollout in range(group.group_size):
                expected = logprobs_of(model, group, rollout, temperature)
                assert np.abs(sampled_logprobs(group, rollout) - expected).max() < 1e-5


def test_windows_are_long_passed():
    """Prompts and rows several times as long as the sliding window."""
    for kind in ("gemma3", "mistral-window", "qwen2-window"):
        own = sampler(kind, max_rows=5)
        model = tiny_model(kind, vocab_size=SIZE, initializer_range=0.08).eval()
        prompts = [np.resize(PROMPTS[2], 40), np.resize(PROMPTS[0], 23)]
        for group in own.sample(prompts, ForkPlan((Stage(2, 15), Stage(2, 15))), KEYS[:2]):
            for rollout in range(group.group_size):
                assert np.abs(sampled_logprobs(group, rollout) - logprobs_of(model, group, rollout, 1.0)).max() < 1e-5


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3"])
@pytest.mark.parametrize("plan", [TREE, DEEP, ForkPlan.plain(5, 9)], ids=["tree", "deep", "plain"])
def test_rollouts_do_not_depend_on_the_batch(kind, plan):
    expected = sampler(kind, max_rows=64).sample(PROMPTS, plan, KEYS)
    for rows in (1, 3, 16):
        assert same(sampler(kind, max_rows=rows).sample(PROMPTS, plan, KEYS), expected)
    backwards = sampler(kind).sample(PROMPTS[::-1], plan, KEYS[::-1])
    assert same(backwards[::-1], expected)
    alone = [sampler(kind).sample([p], plan, [k])[0] for p, k in zip(PROMPTS, KEYS, strict=True)]
    assert same(alone, expected)


def test_seed_key_and_branch_make_the_difference():
    one = sampler(seed=0).sample(PROMPTS, TREE, KEYS)
    assert same(sampler(seed=0).sample(PROMPTS, TREE, KEYS), one)
    assert not same(sampler(seed=1).sample(PROMPTS, TREE, KEYS), one)
    assert not same(sampler(seed=0).sample(PROMPTS, TREE, [(8, i) for i in range(3)]), one)
    no_end = ForkPlan((Stage(4, 12), Stage(4, 12)))
    (group,) = sampler(eos_ids=()).sample(PROMPTS[:1], no_end, KEYS[:1])
    for level in (1, 2):
        texts = {s.tokens.tobytes() for s, n in zip(group.segments, group.levels_S, strict=True) if n == level}
        assert len(texts) == 4**level


def test_the_shape_of_groups():
    groups = sampler().sample(PROMPTS * 4, TREE, [(0, i) for i in range(12)])
    finishes = {1: set(), 2: set()}
    for group, prompt in zip(groups, PROMPTS * 4, strict=True):
        assert np.array_equal(group.prompt, prompt)
        children = np.bincount([s.parent for s in group.segments if s.parent is not None], minlength=99)
        for index, (segment, level) in enumerate(zip(group.segments, group.levels_S, strict=True)):
            finishes[int(level)].add(segment.finish)
            text = TOKENIZER.decode(segment.tokens)
            assert children[index] == (2 if segment.finish is Finish.FORK else 0)
            assert len(segment) <= (8 if level == 1 else 5)
            assert (segment.finish is Finish.STOP) == (int(segment.tokens[-1]) in EOS)
            assert not set(segment.tokens[:-1].tolist()) & set(EOS), "nothing after an EOS"
            if level == 1:
                before = TOKENIZER.decode(segment.tokens[:-1])
                assert (segment.finish is Finish.FORK) == ("x" in text)
                assert "x" not in before, "the thought goes on past its tag"
            if segment.finish is Finish.LENGTH:
                assert len(segment) == (8 if level == 1 else 5)
    assert finishes == {1: set(Finish), 2: {Finish.STOP, Finish.LENGTH}}


def test_the_token_that_ends_a_thought_may_hold_more_than_the_tag():
    groups = sampler().sample(PROMPTS * 10, TREE, [(0, i) for i in range(30)])
    last = {int(s.tokens[-1]) for g in groups for s in g.segments if s.finish is Finish.FORK}
    assert {TOKENIZER.decode([i]) for i in last} == {"x", "x</"}


@pytest.mark.parametrize("eos", [2, 7])
def test_every_eos_id_ends_a_completion(eos):
    """A generation config with the list [2, 7] (A27)."""
    model = tiny_model("llama", vocab_size=SIZE)
    model.generation_config.eos_token_id = [2, 7]
    with torch.no_grad():
        model.lm_head.weight.zero_()
    own = HFSampler(model, TOKENIZER, SampleConfig())
    assert set(own.eos_ids) >= {2, 7}
    groups = own.sample([PROMPTS[0]] * 20, ForkPlan.plain(4, 60), [(0, i) for i in range(20)])
    ended = [s for g in groups for s in g.segments if s.tokens[-1] == eos]
    assert ended
    for group in groups:
        tree = PrefixTree.from_group(group)
        for segment in group.segments:
            assert not set(segment.tokens[:-1].tolist()) & {2, 7}, "nothing after the EOS"
            assert (segment.finish is Finish.STOP) == (int(segment.tokens[-1]) in own.eos_ids)
        assert tree.sampled_T[[r[-1] for r in map(tree.path, range(group.group_size))]].all(), "the EOS is trained"


def test_ids_that_do_not_survive_their_text_are_kept():
    """A31: `<` and `/` sampled apart encode to one token; the ids stay as they were drawn."""
    own = sampler(max_rows=16)
    changed = 0
    for group in own.sample(PROMPTS * 5, TREE, [(1, i) for i in range(15)]):
        for rollout in range(group.group_size):
            ids = group.completion(rollout)
            changed += TOKENIZER(TOKENIZER.decode(ids), add_special_tokens=False).input_ids != ids.tolist()
            tree = PrefixTree.from_group(group)
            assert tree.tokens_T[tree.path(rollout)].tolist() == [*group.prompt, *ids]
            assert (
                np.abs(
                    sampled_logprobs(group, rollout)
                    - logprobs_of(tiny_model("llama", vocab_size=SIZE, initializer_range=0.08), group, rollout, 1.0)
                ).max()
                < 1e-5
            )
    assert changed


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_frequencies_follow_the_exact_probabilities(temperature):
    """Chi-square of two-token completions over every cell, in the tree and in the plain plan."""
    model = tiny_model("llama", vocab_size=SIZE, initializer_range=0.3).eval()
    prompt = PROMPTS[0]
    first = _next_probabilities(model, prompt, temperature)
    joint = np.stack([first[a] * _next_probabilities(model, [*prompt, a], temperature) for a in range(SIZE)])
    for plan, prompts in ((ForkPlan.plain(512, 2), 8), (ForkPlan((Stage(512, 1), Stage(1, 1))), 8)):
        own = sampler(model=model, temperature=temperature, eos_ids=(SIZE - 1,), max_rows=512)
        keys = [(0, i) for i in range(prompts)]
        groups = own.sample([prompt] * prompts, plan, keys)
        rows = [g.completion(r) for g in groups for r in range(g.group_size)]
        counts = np.zeros((SIZE, SIZE))
        ended = np.zeros(SIZE)
        for ids in rows:
            if len(ids) == 2:
                counts[ids[0], ids[1]] += 1
            else:
                ended[ids[0]] += 1
        expected = joint.copy()
        expected[SIZE - 1] = 0
        cells = np.append(counts.ravel(), ended[SIZE - 1])
        probabilities = np.append(expected.ravel(), first[SIZE - 1])
        assert cells.sum() == len(rows) == 4096
        assert _chi_square_z(cells, probabilities) < 4


def _next_probabilities(model, ids, temperature: float) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.tensor(np.array(ids))[None]).logits[0, -1].double()
    return (logits / temperature).softmax(-1).numpy()


def _chi_square_z(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Standardised chi-square; cells expected fewer than five times are put together."""
    expected = probabilities * counts.sum()
    small = expected < 5
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    keep = expected > 0
    statistic = ((counts[keep] - expected[keep]) ** 2 / expected[keep]).sum()
    freedom = keep.sum() - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def test_the_chi_square_sees_a_wrong_temperature():
    model = tiny_model("llama", vocab_size=SIZE, initializer_range=0.3).eval()
    own = sampler(model=model, temperature=1.0, max_rows=512)
    groups = own.sample([PROMPTS[0]] * 8, ForkPlan.plain(512, 1), [(0, i) for i in range(8)])
    counts = np.bincount([int(s.tokens[0]) for g in groups for s in g.segments], minlength=SIZE)
    assert _chi_square_z(counts, _next_probabilities(model, PROMPTS[0], 1.0)) < 4
    assert _chi_square_z(counts, _next_probabilities(model, PROMPTS[0], 0.6)) > 20


def test_logprobs_of_a_cut_distribution_are_the_whole_ones():
    own = sampler(temperature=0.8, top_p=0.7, top_k=5)
    model = tiny_model("llama", vocab_size=SIZE, initializer_range=0.08)
    for group in own.sample(PROMPTS, TREE, KEYS):
        for rollout in range(group.group_size):
            assert np.abs(sampled_logprobs(group, rollout) - logprobs_of(model, group, rollout, 0.8)).max() < 1e-5


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_every_distinct_token_is_computed_once(rows):
    own = sampler(max_rows=rows)
    for plan in (TREE, DEEP, ForkPlan.plain(4, 9)):
        groups = own.sample(PROMPTS, plan, KEYS)
        segments = [s for g in groups for s in g.segments]
        leaves = sum(g.group_size for g in groups)
        assert own.stats.prefilled == sum(map(len, PROMPTS))
        assert own.stats.sampled == sum(map(len, segments))
        assert own.stats.decoded == own.stats.sampled - leaves, "only the last token of a rollout is never fed"
        assert own.stats.steps >= own.stats.decoded / rows


def test_rows_are_filled_as_they_come_free():
    """With room for 6 rows no step runs half empty while others wait."""
    own = sampler(max_rows=6, eos_ids=())
    own.sample(PROMPTS * 6, TREE, [(0, i) for i in range(18)])
    assert own.stats.decoded / own.stats.steps > 5


def test_what_cannot_be_sampled_is_refused():
    own = sampler()
    with pytest.raises(SampleError, match="3 prompts and 1 keys"):
        own.sample(PROMPTS, TREE, KEYS[:1])
    with pytest.raises(SampleError, match=r"prompt 0 has 505 tokens .* context of 512"):
        own.sample([np.resize(PROMPTS[0], 505)], TREE, [(0,)])
    with pytest.raises(SampleError, match="outside the model's vocabulary"):
        own.sample([np.array([SIZE])], TREE, [(0,)])
    with pytest.raises(SampleError, match="at least one token"):
        own.sample([np.array([], dtype=np.int64)], TREE, [(0,)])
    assert own.sample([], TREE, []) == []


def test_a_prompt_that_just_fits_the_context():
    (group,) = sampler(eos_ids=()).sample([np.resize(PROMPTS[0], 499)], TREE, [(0,)])
    assert group.group_size >= 3


def test_rows_find_room_for_long_completions():
    """Past the room that rows start with, up to the last token of the plan, in both stages."""
    own = sampler(eos_ids=())
    (group,) = own.sample(PROMPTS[:1], ForkPlan((Stage(2, 150), Stage(2, 130))), KEYS[:1])
    exact = logprobs_of(tiny_model("llama", vocab_size=SIZE, initializer_range=0.08), group, 3, 1.0)
    assert len(exact) == 280
    assert np.abs(sampled_logprobs(group, 3) - exact).max() < 1e-5


def test_tokens_seen_by_the_policy_of_another_dtype():
    """A bfloat16 copy samples from its own distribution, close to the policy's."""
    model = tiny_model("llama", vocab_size=SIZE, initializer_range=0.08)
    own = sampler(model=model, dtype="bfloat16")
    gaps = [
        np.abs(sampled_logprobs(group, r) - logprobs_of(model, group, r, 1.0)).mean()
        for group, r in product(own.sample(PROMPTS, TREE, KEYS), range(3))
    ]
    assert 0 < np.mean(gaps) < 0.05
