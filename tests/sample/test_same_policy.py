"""The policy that samples is the policy that trains, whatever the batch, the process and the precision."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import tiny_model
from tiny_run import tiny_run
from tiny_tokenizers import byte_level

from phloem.config import SampleConfig
from phloem.forward import logprobs, pack, prepare
from phloem.sample import ForkPlan, HFSampler, Stage
from phloem.tree import Group, PrefixTree

pytestmark = pytest.mark.model

TOKENIZER = byte_level(alphabet="abck<>/xĊ")
SIZE = len(TOKENIZER)
PROMPTS = [np.array([0, 5, 6, 7, 5, 8]), np.array([4, 9]), np.array([0, 7, 7, 7, 9, 10, 11, 5, 6, 4, 8])]
TREE = ForkPlan((Stage(4, 8, "x"), Stage(4, 5)))


def policy(dtype: torch.dtype = torch.float32):
    return tiny_model("llama", dtype=dtype, vocab_size=SIZE, initializer_range=0.08)


def trained_and_sampled(model, groups: list[Group], temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Logprobs of every tree token by the trainer's forward, and as the sampler reported them."""
    prepare(model, "dense")
    trees = [PrefixTree.from_group(g) for g in groups]
    with torch.no_grad():
        trained = logprobs(model, pack(trees), temperature).logprobs_E.float().numpy()
    sampled = []
    for tree in trees:
        own = np.full(len(tree), np.nan)
        for s, segment in enumerate(tree.group.segments):
            own[tree.segment_index(s)] = segment.logprobs
        sampled.append(own[tree.sampled_T])
    return trained, np.concatenate(sampled)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.7, 0), (1.0, 4)])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_a23_sampler_and_trainer_agree_at_every_temperature(temperature, top_p, top_k):
    """A23: same weights, ratio 1. A cut distribution changes what is drawn and not the logprob that is reported."""
    model = policy()
    own = HFSampler(model, TOKENIZER, SampleConfig(temperature=temperature, top_p=top_p, top_k=top_k), eos_ids=(1, 3))
    groups = own.sample(PROMPTS * 3, TREE, [(0, i) for i in range(9)])
    trained, sampled = trained_and_sampled(model, groups, temperature)
    ratio = np.exp(trained - sampled)
    assert ratio.mean() == pytest.approx(1, abs=1e-5)
    assert np.abs(ratio - 1).max() < 1e-4
    elsewhere, _ = trained_and_sampled(model, groups, temperature * 1.5)
    assert np.abs(np.exp(elsewhere - sampled) - 1).max() > 0.1, "another temperature would show"


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_a23_in_bfloat16_the_ratio_is_near_one(temperature):
    model = policy(torch.bfloat16)
    own = HFSampler(model, TOKENIZER, SampleConfig(temperature=temperature), eos_ids=(1, 3))
    groups = own.sample(PROMPTS * 3, TREE, [(0, i) for i in range(9)])
    ratio = np.exp(np.subtract(*trained_and_sampled(model, groups, temperature)))
    assert 0.85 < ratio.min() <= ratio.max() < 1.15
    assert ratio.mean() == pytest.approx(1, abs=0.01)


def test_a_cut_distribution_draws_what_is_left_of_it_scaled_up():
    """top-k 3: frequencies are the three largest probabilities over their sum."""
    model = policy().eval()
    own = HFSampler(model, TOKENIZER, SampleConfig(top_k=3, max_rows=512), eos_ids=())
    groups = own.sample([PROMPTS[0]] * 8, ForkPlan.plain(512, 1), [(0, i) for i in range(8)])
    counts = np.bincount([int(s.tokens[0]) for g in groups for s in g.segments], minlength=SIZE)
    with torch.no_grad():
        exact = model(torch.from_numpy(PROMPTS[0])[None]).logits[0, -1].double().softmax(-1).numpy()
    kept = np.argsort(exact)[-3:]
    assert counts[kept].sum() == 4096
    expected = 4096 * exact[kept] / exact[kept].sum()
    assert ((counts[kept] - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees, one in a thousand


# ------------------------------------------------------------------------------------- the same in any batch


def test_branches_of_one_seed_are_all_distinct():
    """K x M branches of a plan without ends: 4 thoughts and 16 answers, none drawn twice."""
    own = HFSampler(policy(), TOKENIZER, SampleConfig(), eos_ids=())
    for group in own.sample(PROMPTS, ForkPlan((Stage(4, 12), Stage(4, 12))), [(3, i) for i in range(3)]):
        for level, count in ((1, 4), (2, 16)):
            drawn = [s.tokens.tobytes() for s, n in zip(group.segments, group.levels_S, strict=True) if n == level]
            assert len(drawn) == len(set(drawn)) == count


def ids_of(groups: list[Group]) -> list[list[list[int]]]:
    return [[s.tokens.tolist() for s in g.segments] for g in groups]


def test_two_processes_sample_what_one_does():
    """Each process samples its share of the prompts; keys name the prompt, not its place in the share."""
    program = (
        "import json, sys\n"
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        f"spec = spec_from_file_location('same_policy', {str(Path(__file__))!r})\n"
        "module = module_from_spec(spec); spec.loader.exec_module(module)\n"
        "print(json.dumps(module.share(int(sys.argv[1]), 2)))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            text=True,
        )
        for rank in range(2)
    ]
    shares = [json.loads(process.communicate(timeout=300)[0]) for process in started]
    together = share(0, 1)
    assert [together[i] for i in range(0, 7, 2)] == shares[0]
    assert [together[i] for i in range(1, 7, 2)] == shares[1]


def share(rank: int, processes: int) -> list[list[list[int]]]:
    """What one of so many processes samples of seven prompts."""
    own = range(rank, 7, processes)
    sampler = HFSampler(policy(), TOKENIZER, SampleConfig(max_rows=5 + rank), eos_ids=(1, 3), seed=11)
    return ids_of(sampler.sample([PROMPTS[i % 3] for i in own], TREE, [(2, i) for i in own]))


def test_draws_within_rounding_of_a_border_are_rare():
    """Of 1,728 draws no batch size changes one in float32; in bfloat16 a few rollouts differ."""
    plan, keys = ForkPlan((Stage(4, 24), Stage(4, 12))), [(5, i) for i in range(6)]
    found = {}
    for dtype in ("model", "bfloat16"):
        configs = (SampleConfig(dtype=dtype, max_rows=rows) for rows in (3, 64))
        samplers = (HFSampler(policy(), TOKENIZER, config, eos_ids=()) for config in configs)
        one, other = (ids_of(own.sample([PROMPTS[i % 3] for i in range(6)], plan, keys)) for own in samplers)
        found[dtype] = np.mean([a != b for g, h in zip(one, other, strict=True) for a, b in zip(g, h, strict=True)])
    assert found["model"] == 0
    assert found["bfloat16"] < 0.2


# ----------------------------------------------------------------------------------------------- bfloat16


@pytest.mark.parametrize("rows", [3, 16, 512])
def test_bfloat16_rollouts_have_the_same_distribution_in_every_batch(rows):
    """Chi-square of first tokens and of answers after them, against the exact probabilities of the same weights."""
    model = policy(torch.bfloat16).eval()
    own = HFSampler(model, TOKENIZER, SampleConfig(max_rows=rows), eos_ids=())
    copies = 4 if rows == 512 else 1
    groups = own.sample(
        [PROMPTS[0]] * copies, ForkPlan((Stage(512, 1), Stage(1, 1))), [(rows, i) for i in range(copies)]
    )
    exact = policy(torch.bfloat16).float().eval()

    def following(*ids: int) -> np.ndarray:
        with torch.no_grad():
            return exact(torch.tensor([[*PROMPTS[0].tolist(), *ids]])).logits[0, -1].double().softmax(-1).numpy()

    joint = following()[:, None] * np.stack([following(a) for a in range(SIZE)])
    counts = np.zeros((SIZE, SIZE))
    for group in groups:
        for r in range(group.group_size):
            counts[tuple(group.completion(r))] += 1
    for cells, probabilities in ((counts.sum(1), joint.sum(1)), (counts.sum(0), joint.sum(0))):
        expected = probabilities * counts.sum()
        keep = expected >= 5
        statistic = ((cells - expected)[keep] ** 2 / expected[keep]).sum()
        freedom = keep.sum() - 1
        assert (statistic - freedom) / np.sqrt(2 * freedom) < 4


# -------------------------------------------------------------------------------------------------- a run


def test_a_cut_distribution_is_said_by_the_view(tmp_path, capsys, recwarn):
    sample = SampleConfig(thoughts=2, answers=2, thought_tokens=6, answer_tokens=4, top_p=0.9)
    tiny_run(tmp_path, sections={"sample": sample}, view="plain")
    said = capsys.readouterr().out
    assert "WARNING: sample.top_p 0.9 and sample.top_k 0 draw rollouts from a narrower policy" in said
    assert not [w for w in recwarn if "narrower" in str(w.message)]
