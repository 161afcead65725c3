"""The model a sampler runs: its own state over the policy's weights."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from tiny_models import KINDS, adapted_model, tiny_model
from tiny_tokenizers import byte_level
from transformers import LlamaForCausalLM

from phloem.config import SampleConfig
from phloem.forward import prepare
from phloem.models.load import checkpoint_activations
from phloem.sample import ForkPlan, HFSampler, SampleError, StaleWeights
from phloem.sample.packed import Product, pack_linears, plain_linears
from phloem.sample.twin import Twin

pytestmark = pytest.mark.model

TOKENIZER = byte_level(alphabet="abc")
PROMPT, PLAN = np.array([0, 5, 4]), ForkPlan.plain(3, 4)


def _sample(own: HFSampler) -> np.ndarray:
    (group,) = own.sample([PROMPT], PLAN, [(0,)])
    return np.concatenate([s.logprobs for s in group.segments])


def _update(model) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p, dtype=torch.float32))


def test_the_policy_is_left_as_it_was():
    model = tiny_model("llama", vocab_size=7)
    checkpoint_activations(model)
    model.train()
    model.model.layers[1].eval()
    before = {name: module.training for name, module in model.named_modules()}
    attention = model.config._attn_implementation
    own = HFSampler(model, TOKENIZER, SampleConfig(), eos_ids=())
    _sample(own)
    assert {name: module.training for name, module in model.named_modules()} == before
    assert model.config._attn_implementation == attention
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    model(torch.from_numpy(PROMPT)[None], use_cache=False).logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_shared_weights_follow_the_policy_at_once():
    model = tiny_model("llama-tied", vocab_size=7, dtype=torch.float64)
    own = HFSampler(model, TOKENIZER, SampleConfig(), eos_ids=())
    assert not own.twin.copies
    assert all(a is b for a, b in zip(model.parameters(), own.twin.model.parameters(), strict=True))
    before = _sample(own)
    _update(model)
    assert not np.allclose(_sample(own), before)
    assert own.version == 0
    own.sync()
    assert own.version == 1


def test_a_copy_must_be_synced_after_an_update():
    """E01: rollouts never come from weights of before the update."""
    model = tiny_model("llama-tied", vocab_size=7)
    own = HFSampler(model, TOKENIZER, SampleConfig(dtype="bfloat16"), eos_ids=())
    before = _sample(own)
    assert {p.dtype for p in own.twin.model.parameters()} == {torch.bfloat16}
    assert own.twin.model.lm_head.weight is own.twin.model.model.embed_tokens.weight
    for update in (_update, lambda m: m.lm_head.weight.data.mul_(1.5)):
        update(model)
        with pytest.raises(StaleWeights, match=r"call sampler.sync"):
            _sample(own)
        own.sync()
        after = _sample(own)
        assert not np.allclose(after, before)
        before = after
    assert own.version == 2
    for a, b in zip(model.parameters(), own.twin.model.parameters(), strict=True):
        assert torch.equal(a.bfloat16(), b)


def test_a_sync_that_does_not_arrive_is_an_error(monkeypatch):
    model = tiny_model("llama", vocab_size=7)
    own = HFSampler(model, TOKENIZER, SampleConfig(dtype="bfloat16"), eos_ids=())
    _update(model)
    monkeypatch.setattr(torch.nn.Parameter, "copy_", lambda self, other: self)
    with pytest.raises(StaleWeights, match="did not take"):
        own.sync()


def test_packed_weights_must_be_synced_and_move_with_the_trainers():
    """E01: the parameters are shared, the layout the CPU computes with is not."""
    model = tiny_model("llama-tied", vocab_size=7)
    own = HFSampler(model, TOKENIZER, SampleConfig(), eos_ids=())
    assert all(a is b for a, b in zip(model.parameters(), own.twin.model.parameters(), strict=True))
    before = _sample(own)
    _update(model)
    with pytest.raises(StaleWeights, match=r"call sampler.sync"):
        _sample(own)
    own.sync()
    (group,) = own.sample([PROMPT], PLAN, [(0,)])
    assert not np.allclose(np.concatenate([s.logprobs for s in group.segments]), before)
    for segment in group.segments:
        ids = torch.from_numpy(np.concatenate([PROMPT, segment.tokens]))
        with torch.no_grad():
            exact = model(ids[None]).logits[0, 2:-1].log_softmax(-1)
        assert np.abs(segment.logprobs - exact[range(len(exact)), ids[3:]].numpy()).max() < 1e-5


def test_packed_weights_that_do_not_arrive_are_an_error(monkeypatch):
    """E01: a patch that failed is not left for a warning line."""
    model = tiny_model("llama", vocab_size=7)
    own = HFSampler(model, TOKENIZER, SampleConfig(), eos_ids=())
    _update(model)
    monkeypatch.setattr(Product, "pack", lambda self: None)
    with pytest.raises(StaleWeights, match="packed weights"):
        own.sync()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_products_are_the_plain_ones_whatever_the_batch(dtype):
    """Bit for bit the same for a row however many rows stand beside it."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(96, 1536), torch.nn.Linear(1536, 576, bias=False)).to(dtype)
    products = pack_linears(layers)
    assert [product.layers for product in products] == [(layer,) for layer in layers]
    x = torch.randn(130, 96, dtype=dtype)
    with torch.inference_mode():
        together = layers(x)
        for n in (1, 3, 16, 64):
            assert torch.equal(layers(x[:n]), together[:n])
        with plain_linears(products):
            assert torch.allclose(layers(x), together, atol=1e-5 if dtype is torch.float32 else 0.05)


SHARED = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")]


def _shared(model) -> list[tuple[str, ...]]:
    """Packs a model; the names of the layers that are one product with others."""
    names = {module: name.split(".")[-1] for name, module in model.named_modules()}
    return [tuple(names[layer] for layer in p.layers) for p in pack_linears(model) if len(p.layers) > 1]


@pytest.mark.parametrize("kind", KINDS)
def test_layers_with_one_input_are_one_product(kind):
    """The model's logits; weights, biases and whatever stands between the products (norms, rotary) fall into place."""
    packed = tiny_model(kind).eval()
    assert _shared(packed) == ([] if kind == "gpt2" else SHARED * 2)
    ids = torch.randint(61, (7, 5))
    with torch.inference_mode():
        assert torch.allclose(packed(ids).logits, tiny_model(kind).eval()(ids).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shared_product_is_the_same_for_a_row_in_any_batch(dtype):
    attention = tiny_model("qwen2", dtype, hidden_size=96).model.layers[0].self_attn
    assert _shared(attention) == SHARED[:1]
    x = torch.randn(130, 96, dtype=dtype)
    with torch.inference_mode():
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
            together = layer(x)
            assert all(torch.equal(layer(x[:n]), together[:n]) for n in (1, 3, 16, 64))


def test_layers_called_with_different_tensors_do_not_share_a_product():
    """The second layer is asked with other tensors, of other values and of the same ones, and twice."""
    gate = tiny_model("llama").model.layers[0].mlp
    plain = [torch.nn.functional.linear(torch.ones(3, 32) * c, gate.up_proj.weight) for c in (1, 2, 1)]
    assert _shared(gate) == SHARED[1:]
    with torch.inference_mode():
        x = torch.ones(3, 32)
        gate.gate_proj(x)
        found = [gate.up_proj(y) for y in (x, 2 * x, x.clone())]
        again = gate.up_proj(x), gate.up_proj(x)
    assert all(
        torch.allclose(a, b, atol=1e-6) for a, b in zip([*found, *again], [*plain, plain[0], plain[0]], strict=True)
    )


@pytest.mark.parametrize(("targets", "shared"), [("all-linear", []), (["q_proj", "v_proj"], SHARED[1:] * 2)])
def test_layers_with_adapters_are_products_of_their_own(targets, shared):
    assert _shared(adapted_model(target_modules=targets)) == shared


def test_the_same_dtype_is_no_copy():
    assert not Twin(tiny_model("llama", dtype=torch.float64), torch.float64).copies
    shared = Twin(tiny_model("llama"), torch.float32)
    assert all(a is b for a, b in zip(shared.policy.parameters(), shared.model.parameters(), strict=True))


@pytest.mark.parametrize("dtype", ["model", "bfloat16"])
def test_adapters(dtype):
    peft = pytest.importorskip("peft")
    base = tiny_model("llama", vocab_size=7)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    model.enable_input_require_grads()
    own = HFSampler(model, TOKENIZER, SampleConfig(dtype=dtype), eos_ids=())
    (group,) = own.sample([PROMPT], PLAN, [(0,)])
    ids = torch.from_numpy(np.concatenate([group.prompt, group.completion(0)]))
    with torch.no_grad():
        exact = model.eval()(ids[None]).logits[0, 2:-1].log_softmax(-1)
        plain = base.eval() and model.disable_adapter
        with plain():
            without = model(ids[None]).logits[0, 2:-1].log_softmax(-1)
    at = range(len(exact)), ids[3:]
    sampled = group.segments[0].logprobs
    assert np.abs(sampled - exact[at].numpy()).max() < (1e-5 if dtype == "model" else 0.1)
    assert np.abs(without[at].numpy() - exact[at].numpy()).max() > 0.1


@pytest.fixture
def own_accelerate_state():
    """accelerate keeps one precision for a whole process: what a test asks for must not outlive it."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_a_wrapped_forward_is_undone(own_accelerate_state):
    """accelerate sets a forward on the instance that runs the policy's modules; the twin runs its own."""
    model = tiny_model("llama", vocab_size=7)
    expected = _sample(HFSampler(model, TOKENIZER, SampleConfig(), eos_ids=()))
    prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    assert "_original_forward" in prepared.__dict__
    assert np.array_equal(_sample(HFSampler(prepared, TOKENIZER, SampleConfig(), eos_ids=())), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_prepared_for_trees(kind):
    """Its attention, set for packed trees, is neither used nor changed by sampling."""
    plain = tiny_model(kind, vocab_size=7)
    expected = _sample(HFSampler(plain, TOKENIZER, SampleConfig(), eos_ids=()))
    model = tiny_model(kind, vocab_size=7)
    prepare(model, "dense")
    attention = model.config._attn_implementation
    assert np.array_equal(_sample(HFSampler(model, TOKENIZER, SampleConfig(), eos_ids=())), expected)
    assert model.config._attn_implementation == attention != plain.config._attn_implementation


def test_models_it_cannot_serve_are_refused_by_name():
    model = tiny_model("llama")
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(SampleError, match=r"LlamaForCausalLM has layers of the type linear_attention"):
        HFSampler(model, TOKENIZER, SampleConfig(), eos_ids=())


def test_soft_caps_are_refused_by_name():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=7,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        pad_token_id=None,
    )
    with pytest.raises(SampleError, match="Gemma2Attention uses `softcap`"):
        HFSampler(Gemma2ForCausalLM(config), TOKENIZER, SampleConfig(), eos_ids=())


def test_models_that_place_tokens_by_themselves_are_refused_by_name():
    """Bloom's positions come from its attention mask, which the sampler does not make."""
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=7, hidden_size=16, n_layer=2, n_head=2))
    with pytest.raises(SampleError, match="BloomForCausalLM"):
        HFSampler(model, TOKENIZER, SampleConfig(), eos_ids=())


def test_other_logprobs_than_a_plain_forward_are_refused_by_name(monkeypatch):
    class Displaced(LlamaForCausalLM):
        def forward(self, position_ids=None, **kwargs):
            return super().forward(position_ids=None if position_ids is None else position_ids // 2, **kwargs)

    monkeypatch.setattr(Displaced.forward, "__signature__", inspect.signature(LlamaForCausalLM.forward), raising=False)
    model = tiny_model("llama", vocab_size=7)
    model.__class__ = Displaced
    with pytest.raises(SampleError, match="Displaced gives other logprobs"):
        HFSampler(model, TOKENIZER, SampleConfig(), eos_ids=())


def test_parameters_that_were_replaced_are_noticed():
    model = tiny_model("llama", vocab_size=7)
    own = HFSampler(model, TOKENIZER, SampleConfig(), eos_ids=())
    model.load_state_dict({k: v + 0.1 for k, v in model.state_dict().items()}, assign=True)
    with pytest.raises(StaleWeights):
        _sample(own)
    own.sync()
    assert all(a is b for a, b in zip(model.parameters(), own.twin.model.parameters(), strict=True))
    _sample(own)
