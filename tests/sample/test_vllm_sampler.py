"""The vLLM sampler on a stand-in for vLLM: weights that arrive or do not, exact ids, logprobs, a whole run.

`tests/on_vllm` holds the same on vLLM itself (`make test-vllm`).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from groups import flat
from letters_run import gaps, letters_run
from stand_in_engine import StandInEngine
from tiny_models import adapted_model, tiny_model, update
from tiny_tokenizers import byte_level

from phloem import ConfigError, LoraConfig, SampleConfig, TrainConfig, VLLMConfig
from phloem.sample import ForkPlan, SampleError, Stage, StaleWeights, VLLMSampler, check_engine, narrowed
from phloem.sample import vllm as module
from phloem.tree import Finish

pytestmark = pytest.mark.model

TOKENIZER = byte_level(alphabet="abck<>/x")
SIZE = len(TOKENIZER)
EOS = (1, 3)
PROMPTS, KEYS = [np.array([0, 5, 6, 7]), np.array([4, 9])], [(7, 0), (7, 1)]
PLAN = ForkPlan((Stage(4, 5, "x"), Stage(3, 4)))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(module, "LocalEngine", StandInEngine)
    monkeypatch.setattr("phloem.sample.choose.find_spec", lambda name: name)


def policy():
    return tiny_model("llama-tied", vocab_size=SIZE, initializer_range=0.08).eval()


def sampler(model=None, **config) -> VLLMSampler:
    config = SampleConfig(engine="vllm", **config)
    return VLLMSampler(model or policy(), TOKENIZER, config, eos_ids=EOS, seed=1)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_groups_have_the_plans_shape_and_the_policys_logprobs(temperature):
    model = policy()
    own = sampler(model, temperature=temperature)
    finishes = set()
    for group in own.sample(PROMPTS * 6, PLAN, [(7, i) for i in range(12)]):
        children = np.bincount([s.parent for s in group.segments if s.parent is not None], minlength=99)
        for index, (segment, level) in enumerate(zip(group.segments, group.levels_S, strict=True)):
            finishes.add((int(level), segment.finish))
            assert children[index] == (3 if segment.finish is Finish.FORK else 0)
            assert "x" not in TOKENIZER.decode(segment.tokens[:-1]) or level == 2, "the thought goes on past its tag"
            assert not set(segment.tokens[:-1].tolist()) & set(EOS), "nothing after an end id"
        for rollout in range(group.group_size):
            ids = torch.from_numpy(np.concatenate([group.prompt, group.completion(rollout)]))
            rows = (model(ids[None]).logits[0, :-1].double() / temperature).log_softmax(-1).detach().numpy()
            expected = rows[range(len(rows)), ids[1:]][len(group.prompt) - 1 :]
            path = [group.segments[s].logprobs for s in group.path(group.leaves[rollout])]
            assert np.abs(np.concatenate(path) - expected).max() < 1e-5
    wanted = {(1, f) for f in Finish} | {(2, Finish.STOP), (2, Finish.LENGTH)}
    assert finishes == wanted


def test_rollouts_depend_on_seed_key_and_branch():
    one = sampler().sample(PROMPTS, PLAN, KEYS)
    assert flat(sampler().sample(PROMPTS, PLAN, KEYS)) == flat(one)
    assert flat(sampler().sample(PROMPTS[::-1], PLAN, KEYS[::-1])[::-1]) == flat(one)
    assert flat(sampler().sample(PROMPTS, PLAN, [(8, 0), (8, 1)])) != flat(one)


@pytest.mark.parametrize("make", [policy, lambda: adapted_model(model=policy()).eval()], ids=["full", "lora"])
def test_an_update_must_be_synced_and_arrives(make):
    model = make()
    own = sampler(model)
    before = flat(own.sample(PROMPTS, PLAN, KEYS))
    for version in (1, 2, 3):
        update(model)
        with pytest.raises(StaleWeights, match=r"call sampler\.sync\(\)"):
            own.sample(PROMPTS, PLAN, KEYS)
        own.sync()
        assert own.version == version
        assert own.proof.proven == version + 1
        assert own.proof.gap < 1e-5
    update(model, 0.1)
    own.sync()
    assert flat(own.sample(PROMPTS, PLAN, KEYS)) != before


def test_weights_that_do_not_arrive_are_found(monkeypatch):
    model = policy()
    own = sampler(model)
    monkeypatch.setattr(own.engine, "push", lambda tensors: None)
    update(model)
    with pytest.raises(StaleWeights, match=r"the sampler's not at all.*sample\.engine hf"):
        own.sync()


def test_a_matrix_that_does_not_arrive_is_found(monkeypatch):
    """A packed head that the reload leaves as it was."""
    model = policy()
    own = sampler(model)
    push = own.engine.push
    monkeypatch.setattr(own.engine, "push", lambda tensors: push((n, t) for n, t in tensors if "embed" not in n))
    update(model)
    with pytest.raises(StaleWeights, match="they differ by"):
        own.sync()


def test_a_first_push_that_does_not_arrive_is_found(monkeypatch):
    monkeypatch.setattr(StandInEngine, "push", lambda self, tensors: None)
    with pytest.raises(StaleWeights, match=r"nats a token away from the policy's"):
        sampler()


@pytest.fixture
def raw_logprobs(monkeypatch):
    """The engine reports logprobs at temperature 1, whatever it samples at."""

    def raw(self, request):
        found = self.logprobs([[*request.ids, *(reply := sample(self, request)).tokens]])[0]
        return type(reply)(reply.tokens, found[len(request.ids) - 1 :], reply.stopped)

    sample = StandInEngine.sample
    monkeypatch.setattr(StandInEngine, "sample", raw)


@pytest.mark.usefixtures("raw_logprobs")
def test_logprobs_at_another_temperature_are_found():
    sampler(temperature=1.0)
    with pytest.raises(SampleError, match="--logprobs-mode processed_logprobs"):
        sampler(temperature=0.3)


def test_a_prompt_that_does_not_fit_is_refused():
    with pytest.raises(SampleError, match="model's context of 64"):
        sampler().sample([np.resize(PROMPTS[0], 60)], PLAN, KEYS[:1])


def test_a_cut_distribution_is_announced_and_trained_at_temperature_1_only():
    assert "sample.top_k 5 draw rollouts from a narrower policy" in str(narrowed(SampleConfig(top_k=5)))
    assert narrowed(SampleConfig()) is None
    with pytest.raises(ConfigError, match=r"sample\.temperature 1"):
        TrainConfig(sample=SampleConfig(engine="vllm", top_p=0.9, temperature=0.7))


@pytest.mark.usefixtures("raw_logprobs")
def test_an_evaluation_may_cut_at_any_temperature():
    """Its engine reports the logprobs of the whole distribution at temperature 1, and nobody looks at them."""
    assert len(sampler(top_p=0.95, temperature=0.6).sample(PROMPTS, PLAN, KEYS)) == 2


def test_logprobs_of_a_cut_distribution_are_found():
    with pytest.raises(SampleError, match="--logprobs-mode raw_logprobs"):
        sampler(top_p=0.95, temperature=0.3)


# ------------------------------------------------------------------------------------------------------ runs


def test_a_run_learns_and_its_gap_stays_small(tmp_path):
    result = letters_run(tmp_path, {"engine": "vllm"})
    assert result.gain is not None
    assert result.gain.low > 0
    assert max(gaps(result)) < 1e-4


def test_a_run_with_adapters(tmp_path):
    result = letters_run(tmp_path, {"engine": "vllm"}, lora=LoraConfig(rank=8, alpha=32))
    assert max(gaps(result)) < 1e-4


def test_a_run_stops_if_weights_do_not_arrive(tmp_path, monkeypatch):
    push = StandInEngine.push
    monkeypatch.setattr(StandInEngine, "push", lambda self, t: push(self, t) if not self.pushes else None)
    with pytest.raises(StaleWeights, match="What was pushed has not arrived"):
        letters_run(tmp_path, {"engine": "vllm"})


def test_a_run_stops_if_it_is_not_synced(tmp_path, monkeypatch):
    monkeypatch.setattr(VLLMSampler, "sync", lambda self: None)
    with pytest.raises(StaleWeights, match=r"call sampler\.sync\(\)"):
        letters_run(tmp_path, {"engine": "vllm"})


# ------------------------------------------------------------------------------ refused before a model loads


def test_vllm_must_be_installed(tmp_path, monkeypatch):
    monkeypatch.setattr("phloem.sample.choose.find_spec", lambda name: None)
    monkeypatch.setattr("phloem.train.policy.load_model", lambda *args, **kwargs: pytest.fail("a model is loaded"))
    with pytest.raises(ConfigError, match=r"vLLM is not installed: `pip install phloem\[vllm\]`"):
        letters_run(tmp_path, {"engine": "vllm"})


def test_a_server_must_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("phloem.train.policy.load_model", lambda *args, **kwargs: pytest.fail("a model is loaded"))
    with pytest.raises(SampleError, match=r"no answer from http://127.0.0.1:9/v1/models.*sample\.vllm\.url"):
        letters_run(tmp_path, {"engine": "vllm-server", "vllm": VLLMConfig(url="http://127.0.0.1:9", timeout=2)})


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="works in runs of one process, and this one has 2"):
        check_engine(SampleConfig(engine="vllm"))
    check_engine(SampleConfig())
