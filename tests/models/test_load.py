"""From settings to a model and a tokenizer that fit each other."""

from __future__ import annotations

import json
import shutil

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_model
from tiny_tokenizers import LLAMA, byte_level

from phloem.config import LoraConfig, ModelConfig
from phloem.models import (
    ModelError,
    check_tokenizer,
    check_trainable,
    eos_ids,
    load_model,
    load_skeleton,
    load_tokenizer,
)

pytestmark = pytest.mark.model

TOKENIZER = byte_level(LLAMA)
SIZE = len(TOKENIZER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model = tiny_model("llama-tied", vocab_size=SIZE)
    model.generation_config.eos_token_id = [2, 7]
    model.save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


def test_a_folder(folder):
    model, tokenizer = load_model(ModelConfig(path=str(folder)))
    assert not model.training
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in model.parameters())
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert tokenizer("<|start|>a 12").input_ids == TOKENIZER("<|start|>a 12").input_ids


def test_dtype_and_checkpointing(folder):
    model, _ = load_model(ModelConfig(path=str(folder), dtype="bfloat16", gradient_checkpointing=True))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    model.train()
    assert model.model.layers[0].gradient_checkpointing


def test_every_declared_end_counts(folder):
    """Generation config [2, 7], tokenizer's </s> and the template's <|eot|> (A27)."""
    model, tokenizer = load_model(ModelConfig(path=str(folder)))
    assert eos_ids(model, tokenizer) == (1, 2, 3, 7)
    model.config.eos_token_id = 9
    assert eos_ids(model, tokenizer) == (1, 2, 3, 7, 9)


def test_a_tokenizer_without_weights_knows_what_the_model_declares(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "light", ignore=shutil.ignore_patterns("*.safetensors"))
    tokenizer, declared = load_tokenizer(ModelConfig(path=str(tmp_path / "light")))
    assert eos_ids(declared, tokenizer) == (1, 2, 3, 7)
    assert (declared.context, declared.vocabulary) == (512, SIZE)
    (tmp_path / "light" / "generation_config.json").unlink()
    assert eos_ids(load_tokenizer(ModelConfig(path=str(tmp_path / "light")))[1], tokenizer) == (1, 3)


def test_a_tokenizer_that_does_not_fit_is_refused_without_weights(tmp_path):
    tiny_model("llama").config.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=rf"ids up to {SIZE - 1} and the model embeds 61"):
        load_tokenizer(ModelConfig(path=str(tmp_path)))
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"give the folder of a causal language model with its config\.json"):
        load_tokenizer(ModelConfig(path=str(tmp_path)))


def test_a_model_without_any_end_is_refused():
    tokenizer = byte_level()
    tokenizer.eos_token = None
    model = tiny_model("llama", vocab_size=SIZE)
    with pytest.raises(ModelError, match="end-of-sequence"):
        eos_ids(model, tokenizer)


def test_new_adapters_train_and_the_base_does_not(folder):
    config = ModelConfig(path=str(folder), lora=LoraConfig(rank=4, alpha=8.0, target_modules=("q_proj", "v_proj")))
    model, _ = load_model(config)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name and ("q_proj" in name or "v_proj" in name) for name in trained)
    everywhere, _ = load_model(ModelConfig(path=str(folder), lora=LoraConfig(rank=4)))
    assert sum("lora_A" in name for name, _ in everywhere.named_parameters()) == 2 * 7
    with pytest.raises(ModelError, match="target_modules"):
        load_model(ModelConfig(path=str(folder), lora=LoraConfig(rank=4, target_modules=("nothing",))))


def test_a_saved_adapter_loads_trainable(folder, tmp_path):
    """D06: an adapter loaded frozen would leave the optimiser empty."""
    model, _ = load_model(ModelConfig(path=str(folder), lora=LoraConfig(rank=4)))
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.normal_()
    model.save_pretrained(tmp_path)
    again, tokenizer = load_model(ModelConfig(path=str(tmp_path)))
    ids = torch.tensor([[4, 5, 6]])
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert any(p.requires_grad for p in again.parameters())
    assert len(tokenizer) == SIZE
    with pytest.raises(ModelError, match="set the rank to 0"):
        load_model(ModelConfig(path=str(tmp_path), lora=LoraConfig(rank=4)))
    frozen, _ = load_model(ModelConfig(path=str(tmp_path)), trainable=False)
    with pytest.raises(ModelError, match="no trainable parameters"):
        check_trainable(frozen)


def test_adapters_without_their_base_or_whole_weights_say_so(folder, tmp_path):
    model, _ = load_model(ModelConfig(path=str(folder), lora=LoraConfig(rank=4)))
    model.save_pretrained(tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    with pytest.raises(ModelError, match=rf"folder {tmp_path} could not be loaded"):
        load_model(ModelConfig(path=str(tmp_path)))
    weights.write_bytes(whole)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "empty").mkdir()
    settings["base_model_name_or_path"] = str(tmp_path / "empty")
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    for load in (load_model, load_skeleton):
        with pytest.raises(ModelError, match=r"empty, the base model that .*adapter_config\.json names"):
            load(ModelConfig(path=str(tmp_path)))


@pytest.mark.filterwarnings("error::FutureWarning")
def test_adapters_come_without_warnings(folder, tmp_path):
    model, _ = load_model(ModelConfig(path=str(folder), lora=LoraConfig(rank=4)))
    model.save_pretrained(tmp_path)
    load_model(ModelConfig(path=str(tmp_path)))
    load_skeleton(ModelConfig(path=str(tmp_path)))


def test_a_model_that_comes_without_anything_to_train_is_refused(folder, tmp_path, monkeypatch):
    """D06, where it would happen: the adapter's weights are there and all of them are frozen."""
    load_model(ModelConfig(path=str(folder), lora=LoraConfig(rank=4)))[0].save_pretrained(tmp_path)
    attach = peft.PeftModel.from_pretrained
    monkeypatch.setattr(peft.PeftModel, "from_pretrained", lambda model, path, **_: attach(model, path))
    with pytest.raises(ModelError, match="no trainable parameters"):
        load_model(ModelConfig(path=str(tmp_path)))


def test_unknown_paths_name_the_remedy(tmp_path):
    for path in ("./nowhere", "/no/such/folder", "missing.gguf", "a/b/c"):
        with pytest.raises(ModelError, match="does not exist: give a Hugging Face folder"):
            load_model(ModelConfig(path=path))
    file = tmp_path / "weights.bin"
    file.write_bytes(b"")
    with pytest.raises(ModelError, match="is a file"):
        load_model(ModelConfig(path=str(file)))
    with pytest.raises(ModelError, match=r"folder .* could not be loaded"):
        load_model(ModelConfig(path=str(tmp_path)))


def test_a_hub_id_without_a_network_names_the_remedy(monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=r"cannot be reached: check the network \(and HF_HUB_OFFLINE\)"):
        load_model(ModelConfig(path="phloem-tests/not-there"))


def test_weights_that_are_not_whole_are_refused(folder, tmp_path):
    """A tensor that is not there would be filled with random numbers and trained on."""
    whole = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    rest = {key: value for key, value in whole.items() if key != name}
    for case, tensors in (("lacking", rest), ("cropped", rest | {name: whole[name][:5].clone()})):
        shutil.copytree(folder, tmp_path / case)
        save_file(tensors, tmp_path / case / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"lack {name} of a LlamaForCausalLM"):
        load_model(ModelConfig(path=str(tmp_path / "lacking")))
    with pytest.raises(ModelError, match="cropped could not be loaded"):
        load_model(ModelConfig(path=str(tmp_path / "cropped")))
    content = (folder / "model.safetensors").read_bytes()
    for size in (0, 100, len(content) // 2):
        (tmp_path / "lacking" / "model.safetensors").write_bytes(content[:size])
        with pytest.raises(ModelError, match="lacking could not be loaded"):
            load_model(ModelConfig(path=str(tmp_path / "lacking")))


def test_a_tokenizer_that_writes_ids_without_embeddings_is_refused():
    with pytest.raises(ModelError, match=rf"ids up to {SIZE - 1} and the model embeds 61"):
        check_tokenizer(tiny_model("llama"), TOKENIZER)
    small = tiny_model("llama", vocab_size=SIZE)
    small.generation_config.eos_token_id = SIZE + 5
    with pytest.raises(ModelError, match=rf"\[{SIZE + 5}\] lie outside"):
        check_tokenizer(small, TOKENIZER)


def test_an_adapter_that_names_no_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}), encoding="utf-8")
    with pytest.raises(ModelError, match="names no base model"):
        load_model(ModelConfig(path=str(tmp_path)))
