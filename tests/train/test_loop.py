"""The loop on a tiny model: it learns, repeats itself and keeps its promises."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from letters_run import letters, letters_config
from short_runs import metrics, quick_train, rollouts, untimed
from transformers import AutoModelForCausalLM, AutoTokenizer

from phloem import (
    ColdStartConfig,
    CreditConfig,
    EvaluationConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    TaskConfig,
)
from phloem.models import encode_prompt
from phloem.train import train

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("preset", "thoughts", "answers"), [("grpo", 16, 1), ("lambda-grpo-sn", 16, 1), ("grpo-ma", 4, 4)]
)
def test_it_learns(model_folder, tmp_path, preset, thoughts, answers):
    wanted = letters_config(
        model_folder,
        tmp_path / "run",
        sample=SampleConfig(thoughts=thoughts, answers=answers, fork_at="<", thought_tokens=6, answer_tokens=4),
        credit=CreditConfig(preset=preset),
        optim=OptimConfig(steps=25, prompts_per_step=2, lr=1e-2),
        evaluation=EvaluationConfig(prompts=8, samples=16),
    )
    result = train(wanted, letters())
    assert result.gain is not None
    assert result.gain.low > 0.1
    assert result.after.mean > 2 * result.before.mean
    assert (result.folder / "curves.png").stat().st_size > 10_000


def test_the_same_seed_repeats_a_run_and_another_does_not(model_folder, tmp_path):
    runs = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        wanted = letters_config(model_folder, tmp_path / name)
        quick_train(replace(wanted, run=replace(wanted.run, seed=seed)), letters())
        runs.append(untimed(metrics(tmp_path / name, "train")))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_run_folder_is_complete_and_its_model_is_anybodys(model_folder, tmp_path):
    wanted = letters_config(
        model_folder,
        tmp_path / "run",
        evaluation=EvaluationConfig(prompts=4, samples=2, every=1, prompts_between=2),
        cold_start=ColdStartConfig(steps=2, batch_size=2, lr=1e-3),
        run=RunConfig(folder=str(tmp_path / "run"), view="none"),
    )
    result = train(wanted, letters())
    names = {path.name for path in result.folder.iterdir()}
    assert names == {
        "config.yaml",
        "env.json",
        "metrics.jsonl",
        "rollouts.jsonl",
        "completions",
        "model",
        "best",
        "checkpoints",
        "curves.png",
        "summary.json",
    }
    assert json.loads((result.folder / "env.json").read_text())["packages"]["phloem"]
    model = AutoModelForCausalLM.from_pretrained(result.folder / "model")
    assert "phloem" not in str(model.config._attn_implementation)
    assert AutoTokenizer.from_pretrained(result.folder / "model").eos_token == "</s>"
    for (name, saved), (_, own) in zip(model.named_parameters(), result.model.named_parameters(), strict=True):
        torch.testing.assert_close(saved, own.detach(), msg=name)
    assert len(metrics(result.folder, "cold_start")) == 2
    assert [r["step"] for r in metrics(result.folder, "evaluation")] == [0, 1, 2]
    assert AutoModelForCausalLM.from_pretrained(result.folder / "best") is not None


def test_trained_ids_are_the_sampled_ids(model_folder, tmp_path, monkeypatch):
    """A31: nothing is encoded again between sampler and loss."""
    from phloem.sample import HFSampler
    from phloem.train import step as step_module

    seen: dict[str, list[list[int]]] = {"sampled": [], "trained": []}
    sample, packed = HFSampler.sample, step_module.pack

    def spy_sample(self, *args, **kwargs):
        groups = sample(self, *args, **kwargs)
        seen["sampled"] += [[*g.prompt, *g.completion(r)] for g in groups for r in range(g.group_size)]
        return groups

    def spy_pack(trees):
        trees = list(trees)
        seen["trained"] += [t.tokens_T[t.path(r)].tolist() for t in trees for r in range(t.group.group_size)]
        return packed(trees)

    monkeypatch.setattr(HFSampler, "sample", spy_sample)
    monkeypatch.setattr(step_module, "pack", spy_pack)
    # With a KL term every group is trained, also one of equal rewards.
    optim, rule = OptimConfig(steps=1, prompts_per_step=4, lr=1e-3), CreditConfig(preset="grpo", beta=0.1)
    quick_train(letters_config(model_folder, tmp_path / "run", optim=optim, credit=rule), letters())
    assert sorted(map(list, seen["trained"])) == sorted([int(i) for i in row] for row in seen["sampled"])


def test_prompts_are_the_same_ids_on_every_path(model_folder, tmp_path, monkeypatch):
    """A30: training, evaluation and cold start encode by one function, which writes one BOS (tests/models)."""
    from phloem.sample import HFSampler
    from phloem.train import loop, prepare

    seen: dict[str, set[tuple[int, ...]]] = {}
    sample, supervise = HFSampler.sample, prepare.cold_start

    def spy_sample(self, prompts, plan, keys):
        path = {loop.TRAINING: "training", loop.HELD_OUT: "evaluation"}[keys[0][0]]
        seen.setdefault(path, set()).update(tuple(map(int, prompt)) for prompt in prompts)
        return sample(self, prompts, plan, keys)

    def spy_supervise(model, rows, *rest):
        seen["cold start"] = {tuple(map(int, prompt)) for prompt, _ in rows}
        return supervise(model, rows, *rest)

    monkeypatch.setattr(HFSampler, "sample", spy_sample)
    monkeypatch.setattr(prepare, "cold_start", spy_supervise)
    wanted = letters_config(
        model_folder,
        tmp_path / "run",
        cold_start=ColdStartConfig(steps=1, batch_size=2),
        optim=OptimConfig(steps=1, prompts_per_step=8, lr=1e-3),
        evaluation=EvaluationConfig(prompts=8, samples=1),
    )
    quick_train(wanted, letters())
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    prompts = {tuple(encode_prompt(tokenizer, example.prompt).tolist()) for example in letters().train}
    assert seen == {"training": prompts, "evaluation": prompts, "cold start": prompts}


def test_rewards_get_one_text_whatever_the_style_of_the_prompt(model_folder, tmp_path):
    """C03: a text, and the conversation of one message with that text, are the same run, and no reward sees a list."""
    runs = []
    for style in ("text", "conversation"):
        seen: list[Any] = []

        def keeps(completion: str, answer: str, row: Any, seen: list[Any] = seen) -> float:
            seen.append(completion)
            return float(len(set(completion)))

        task = letters(keeps)
        if style == "conversation":
            told = [replace(e, prompt=({"role": "user", "content": e.prompt},)) for e in task.train]
            task = replace(task, train=told, held_out=told)
        quick_train(letters_config(model_folder, tmp_path / style), task)
        assert {type(completion) for completion in seen} == {str}
        runs.append((seen, untimed(metrics(tmp_path / style, "train"))))
    assert runs[0] == runs[1]


def test_the_end_token_is_trained(model_folder, tmp_path):
    """A27: every declared end id closes a completion, is its last token, and is trained."""
    wanted = letters_config(model_folder, tmp_path / "run", optim=OptimConfig(steps=4, prompts_per_step=4, lr=1e-3))
    quick_train(wanted, letters())
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    ends = {tokenizer.convert_tokens_to_ids(name) for name in ("</s>", "<|eot|>")}
    stopped = 0
    for group in rollouts(tmp_path / "run"):
        for segment in group["segments"]:
            closed = [i for i, token in enumerate(segment["ids"]) if token in ends]
            assert closed == ([len(segment["ids"]) - 1] if segment["finish"] == "stop" else [])
            stopped += segment["finish"] == "stop"
    assert stopped > 0


def test_the_first_update_of_a_step_has_ratio_one_and_the_second_has_not(model_folder, tmp_path):
    for updates in (1, 2):
        wanted = letters_config(
            model_folder,
            tmp_path / str(updates),
            optim=OptimConfig(steps=1, prompts_per_step=4, lr=1e-2, updates_per_step=updates),
        )
        quick_train(wanted, letters())
    one, two = (metrics(tmp_path / str(n), "train")[0] for n in (1, 2))
    assert one["ratio"] == 1.0
    assert one["clipped_low"] == one["clipped_high"] == 0.0
    assert two["ratio"] != 1.0
    assert two["clipped_low"] + two["clipped_high"] > 0


@pytest.mark.parametrize("rank", [0, 4])
def test_the_reference_is_the_policy_before_the_first_update(model_folder, tmp_path, rank):
    wanted = letters_config(
        model_folder,
        tmp_path / "run",
        model=ModelConfig(path=str(model_folder), lora=LoraConfig(rank=rank)),
        credit=CreditConfig(preset="grpo", beta=0.1),
        optim=OptimConfig(steps=3, prompts_per_step=2, lr=1e-2),
    )
    quick_train(wanted, letters())
    kl = [r["kl_ref"] for r in metrics(tmp_path / "run", "train")]
    assert kl[0] == pytest.approx(0.0, abs=1e-9)
    assert kl[2] > 1e-5


def test_adapters_are_trained_and_saved(model_folder, tmp_path):
    wanted = letters_config(
        model_folder,
        tmp_path / "run",
        model=ModelConfig(path=str(model_folder), lora=LoraConfig(rank=4)),
        run=RunConfig(folder=str(tmp_path / "run"), view="none"),
    )
    result = quick_train(wanted, letters())
    trained = [n for n, p in result.model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)
    assert (result.folder / "model" / "adapter_model.safetensors").exists()


def test_gradient_checkpointing_does_not_change_a_run(model_folder, tmp_path):
    runs = []
    for on in (False, True):
        model = ModelConfig(path=str(model_folder), gradient_checkpointing=on)
        quick_train(letters_config(model_folder, tmp_path / str(on), model=model), letters())
        runs.append([r["grad_norm"] for r in metrics(tmp_path / str(on), "train")])
    assert runs[0] == pytest.approx(runs[1], rel=1e-4)


def test_pack_tokens_do_not_change_a_run(model_folder, tmp_path):
    runs = []
    for tokens in (20, 4096):
        optim = OptimConfig(steps=2, prompts_per_step=4, lr=1e-3, pack_tokens=tokens)
        quick_train(letters_config(model_folder, tmp_path / str(tokens), optim=optim), letters())
        runs.append(metrics(tmp_path / str(tokens), "train"))
    assert runs[0][0]["packs"] > runs[1][0]["packs"] == 1
    assert [r["grad_norm"] for r in runs[0]] == pytest.approx([r["grad_norm"] for r in runs[1]], rel=1e-4)


def test_a_process_may_train_twice_in_other_precisions(model_folder, tmp_path):
    for autocast in (False, True, False):
        model = ModelConfig(path=str(model_folder), autocast=autocast)
        folder = tmp_path / f"{autocast}{len(list(tmp_path.iterdir()))}"
        quick_train(letters_config(model_folder, folder, model=model), letters())


def test_settings_of_a_built_in_task_are_said_to_be_idle_beside_ones_own(model_folder, tmp_path, capsys):
    wanted = letters_config(model_folder, tmp_path / "run", task=TaskConfig(format_weight=0.5, held_out_size=16))
    quick_train(replace(wanted, run=replace(wanted.run, view="plain")), letters())
    assert "these settings do nothing: task.held_out_size, task.format_weight" in capsys.readouterr().out


def test_the_learning_rate_follows_its_schedule_also_where_nothing_was_trained(model_folder, tmp_path):
    calls = iter(range(10**6))

    def flat_at_first(completion: str, answer: str, row: Any) -> float:
        n = next(calls)
        return 0.0 if n < 8 else float(n % 2)

    optim = OptimConfig(steps=4, prompts_per_step=2, lr=1e-3, schedule="linear", warmup_steps=1)
    quick_train(letters_config(model_folder, tmp_path / "run", optim=optim), letters(flat_at_first))
    found = metrics(tmp_path / "run", "train")
    assert found[0]["packs"] == 0
    assert [r["lr"] for r in found] == pytest.approx([1e-3, 1e-3, 2e-3 / 3, 1e-3 / 3])
