"""What a run would take is said without its weights, and for the processes that were launched."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import save_tiny_model, tiny_model
from tiny_tokenizers import QWEN, byte_level

from phloem import CreditConfig, EvaluationConfig, LoraConfig, ModelConfig, OptimConfig, SampleConfig, TrainConfig
from phloem.cli import main
from phloem.kinds import PhloemError
from phloem.models import load_skeleton, load_tokenizer
from phloem.train.dry_run import memory_of
from phloem.train.policy import Policy
from phloem.train.ranks import Ranks

pytestmark = pytest.mark.model


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A model folder without weights."""
    folder = save_tiny_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    return folder


def test_it_prints_processes_packs_memory_and_disk_and_leaves_nothing(bare, tmp_path, capsys):
    words = ["--model.path", str(bare), "--run.folder", str(tmp_path / "run"), "--evaluation.prompts", "0"]
    assert main(["train", "--dry_run", *words, "--optim.prompts_per_step", "6"]) == 0
    said = capsys.readouterr().out
    for words_said in (
        "processes     1, alone, on cpu",
        "6 prompts x 4 x 4 rollouts",
        "AdamW's moments",
        "a checkpoint",
    ):
        assert words_said in said
    assert not (tmp_path / "run").exists()


def test_a_group_of_declared_levels_is_planned_by_them(bare, capsys):
    forks = "[{fan_out: 2, max_tokens: 30, until: </plan>}, {fan_out: 3, max_tokens: 20}]"
    words = ["--model.path", str(bare), "--evaluation.prompts", "0", "--sample.forks", forks]
    assert main(["train", "--dry_run", *words, "--optim.prompts_per_step", "1"]) == 0
    said = capsys.readouterr().out
    assert "1 prompts x 2 x 3 rollouts" in said
    tree, rows = re.search(r"full lengths ([\d,]+) tree tokens on paths for ([\d,]+) of rows", said).groups()
    assert int(rows.replace(",", "")) == 6 * (int(tree.replace(",", "")) - (2 * 30 + 6 * 20) + 30 + 20)


def test_what_would_stop_the_run_stops_it(bare, tmp_path, capsys, monkeypatch):
    assert main(["train", "--dry_run", "--model.path", str(tmp_path / "nowhere")]) == 1
    assert main(["train", "--dry_run", "--model.path", str(bare), "--optim.prompts_per_step", "100000"]) == 2
    assert main(["doctor", "--dry_run", "--model.path", str(bare)]) == 2
    monkeypatch.setattr("phloem.train.trackers.find_spec", lambda name: None)
    assert main(["train", "--dry_run", "--model.path", str(bare), "--run.trackers", "[wandb]"]) == 2
    assert "which is not installed" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["train", "--dry_run", "--model.path", str(bare), "--sample.thought_tokens", "5000"]) == 2
    assert "over the model's context of 512" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").write_text("")
    assert main(["train", "--dry_run", "--model.path", str(bare), "--run.folder", str(tmp_path)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def memory(path: Path, ranks: Ranks, **sections) -> dict[str, float]:
    config = replace(TrainConfig(model=ModelConfig(path=str(path)), evaluation=EvaluationConfig(prompts=0)), **sections)
    tokenizer, _ = load_tokenizer(config.model)
    device = type("Accelerator", (), {"device": torch.device("cpu")})()
    policy = Policy(load_skeleton(config.model), tokenizer, device, config, "paths")
    assert all(p.is_meta for p in policy.model.parameters())
    return memory_of(policy, ranks, tree_tokens=100.0).parts


def test_memory_follows_adapters_the_reference_and_sharding(bare):
    weights = sum(p.nbytes for p in tiny_model("llama", vocab_size=len(byte_level(QWEN))).parameters())
    plain = memory(bare, Ranks())
    assert plain["weights"] == plain["gradients"] == plain["AdamW's moments"] / 2 == weights
    assert "KL reference" not in plain
    assert memory(bare, Ranks(), credit=CreditConfig(beta=0.1))["KL reference"] == weights
    adapted = memory(bare, Ranks(), model=ModelConfig(path=str(bare), lora=LoraConfig(rank=2)))
    assert 0 < adapted["gradients"] < weights / 4
    spread = memory(bare, Ranks(0, 4, sharded=True))
    assert spread["AdamW's moments"] == weights / 2
    assert spread["whole weights, to sample from"] == weights
    half = memory(bare, Ranks(), sample=SampleConfig(dtype="bfloat16"))
    assert half["the sampler's copy in bfloat16"] == weights / 2
    wide = memory(bare, Ranks(), optim=OptimConfig(pack_tokens=4096))
    assert wide["activations of a pack"] == 2 * plain["activations of a pack"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DEEPSPEED, which is not served: launch with DDP or FSDP2"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, "launch with --fsdp_version 2"),
    ],
)
def test_parallelism_that_is_not_served_is_refused(monkeypatch, asked, says):
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PhloemError, match=says):
        Ranks.join()
