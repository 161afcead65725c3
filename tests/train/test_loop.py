"""The loop on a tiny model: it learns, repeats itself, keeps its promises and stops where nothing is learnt."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import tiny_model
from tiny_tokenizers import QWEN, byte_level
from transformers import AutoModelForCausalLM, AutoTokenizer

from phloem import (
    AlarmsConfig,
    ColdStartConfig,
    CreditConfig,
    EvaluationConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    TaskConfig,
    TrainConfig,
)
from phloem.config import ConfigError
from phloem.kinds import PhloemError
from phloem.models import encode_prompt
from phloem.tasks import Example, ExampleTask, TaskError
from phloem.train import TrainError, train

pytestmark = pytest.mark.model

ALPHABET = "".join(sorted({*"abcdefgh</>?", *"user\nassistant", "Ċ"}))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tokenizer = byte_level(QWEN, alphabet=ALPHABET)
    tiny_model("llama", vocab_size=len(tokenizer), initializer_range=0.05).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def letters(reward: Any = None, count: int = 8) -> ExampleTask:
    """Earns the share of letters that are an `a`; an answer after the tag may be anything."""

    def share(completion: str, answer: str, row: Any) -> float:
        return completion.count("a") / max(1, len(completion))

    problems = [Example(str(n), "abcdefgh"[n % 8], "a", demonstrations=("<a>ba",)) for n in range(count)]
    return ExampleTask("letters", problems, problems, reward or share)


def config(model_path: Path, folder: Path, **sections: Any) -> TrainConfig:
    base = TrainConfig(
        model=ModelConfig(path=str(model_path)),
        sample=SampleConfig(thoughts=4, answers=1, fork_at="<", thought_tokens=4, answer_tokens=4),
        credit=CreditConfig(preset="grpo"),
        optim=OptimConfig(steps=2, prompts_per_step=2, lr=1e-2),
        evaluation=EvaluationConfig(prompts=0),
        run=RunConfig(folder=str(folder), view="none", save_model=False),
    )
    return replace(base, **sections)


def records(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line for line in lines if line["kind"] == kind]


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    timed = ("mfu", "ceiling_share", "distinct_per_second")
    return {key: value for key, value in record.items() if not key.startswith("seconds") and key not in timed}


@pytest.mark.parametrize(
    ("preset", "thoughts", "answers"), [("grpo", 16, 1), ("lambda-grpo-sn", 16, 1), ("grpo-ma", 4, 4)]
)
def test_it_learns(model_folder, tmp_path, preset, thoughts, answers):
    wanted = config(
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
        wanted = config(model_folder, tmp_path / name)
        train(replace(wanted, run=replace(wanted.run, seed=seed)), letters())
        runs.append([without_time(r) for r in records(tmp_path / name)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_run_folder_is_complete_and_its_model_is_anybodys(model_folder, tmp_path):
    wanted = config(
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
    assert len(records(result.folder, "cold_start")) == 2
    assert [r["step"] for r in records(result.folder, "evaluation")] == [0, 1, 2]
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
    train(config(model_folder, tmp_path / "run", optim=optim, credit=rule), letters())
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
    wanted = config(
        model_folder,
        tmp_path / "run",
        cold_start=ColdStartConfig(steps=1, batch_size=2),
        optim=OptimConfig(steps=1, prompts_per_step=8, lr=1e-3),
        evaluation=EvaluationConfig(prompts=8, samples=1),
    )
    train(wanted, letters())
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
        train(config(model_folder, tmp_path / style), task)
        assert {type(completion) for completion in seen} == {str}
        runs.append((seen, [without_time(r) for r in records(tmp_path / style)]))
    assert runs[0] == runs[1]


def test_the_end_token_is_trained(model_folder, tmp_path):
    """A27: every declared end id closes a completion, is its last token, and is trained."""
    wanted = config(model_folder, tmp_path / "run", optim=OptimConfig(steps=4, prompts_per_step=4, lr=1e-3))
    train(wanted, letters())
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    ends = {tokenizer.convert_tokens_to_ids(name) for name in ("</s>", "<|eot|>")}
    stopped = 0
    for line in (tmp_path / "run" / "rollouts.jsonl").read_text("utf-8").splitlines():
        for segment in json.loads(line)["segments"]:
            closed = [i for i, token in enumerate(segment["ids"]) if token in ends]
            assert closed == ([len(segment["ids"]) - 1] if segment["finish"] == "stop" else [])
            stopped += segment["finish"] == "stop"
    assert stopped > 0


def test_the_first_update_of_a_step_has_ratio_one_and_the_second_has_not(model_folder, tmp_path):
    for updates in (1, 2):
        wanted = config(
            model_folder,
            tmp_path / str(updates),
            optim=OptimConfig(steps=1, prompts_per_step=4, lr=1e-2, updates_per_step=updates),
        )
        train(wanted, letters())
    one, two = (records(tmp_path / str(n))[0] for n in (1, 2))
    assert one["ratio"] == 1.0
    assert one["clipped_low"] == one["clipped_high"] == 0.0
    assert two["ratio"] != 1.0
    assert two["clipped_low"] + two["clipped_high"] > 0


@pytest.mark.parametrize("rank", [0, 4])
def test_the_reference_is_the_policy_before_the_first_update(model_folder, tmp_path, rank):
    wanted = config(
        model_folder,
        tmp_path / "run",
        model=ModelConfig(path=str(model_folder), lora=LoraConfig(rank=rank)),
        credit=CreditConfig(preset="grpo", beta=0.1),
        optim=OptimConfig(steps=3, prompts_per_step=2, lr=1e-2),
    )
    train(wanted, letters())
    kl = [r["kl_ref"] for r in records(tmp_path / "run")]
    assert kl[0] == pytest.approx(0.0, abs=1e-9)
    assert kl[2] > 1e-5


def test_adapters_are_trained_and_saved(model_folder, tmp_path):
    wanted = config(
        model_folder,
        tmp_path / "run",
        model=ModelConfig(path=str(model_folder), lora=LoraConfig(rank=4)),
        run=RunConfig(folder=str(tmp_path / "run"), view="none"),
    )
    result = train(wanted, letters())
    trained = [n for n, p in result.model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)
    assert (result.folder / "model" / "adapter_model.safetensors").exists()


def test_gradient_checkpointing_does_not_change_a_run(model_folder, tmp_path):
    runs = []
    for on in (False, True):
        model = ModelConfig(path=str(model_folder), gradient_checkpointing=on)
        train(config(model_folder, tmp_path / str(on), model=model), letters())
        runs.append([r["grad_norm"] for r in records(tmp_path / str(on))])
    assert runs[0] == pytest.approx(runs[1], rel=1e-4)


def test_pack_tokens_do_not_change_a_run(model_folder, tmp_path):
    runs = []
    for tokens in (20, 4096):
        optim = OptimConfig(steps=2, prompts_per_step=4, lr=1e-3, pack_tokens=tokens)
        train(config(model_folder, tmp_path / str(tokens), optim=optim), letters())
        runs.append(records(tmp_path / str(tokens)))
    assert runs[0][0]["packs"] > runs[1][0]["packs"] == 1
    assert [r["grad_norm"] for r in runs[0]] == pytest.approx([r["grad_norm"] for r in runs[1]], rel=1e-4)


def test_a_process_may_train_twice_in_other_precisions(model_folder, tmp_path):
    for autocast in (False, True, False):
        model = ModelConfig(path=str(model_folder), autocast=autocast)
        train(config(model_folder, tmp_path / f"{autocast}{len(list(tmp_path.iterdir()))}", model=model), letters())


def test_settings_of_a_built_in_task_are_said_to_be_idle_beside_ones_own(model_folder, tmp_path, capsys):
    wanted = config(model_folder, tmp_path / "run", task=TaskConfig(format_weight=0.5, held_out_size=16))
    train(replace(wanted, run=replace(wanted.run, view="plain")), letters())
    assert "these settings do nothing: task.held_out_size, task.format_weight" in capsys.readouterr().out


def test_the_learning_rate_follows_its_schedule_also_where_nothing_was_trained(model_folder, tmp_path):
    calls = iter(range(10**6))

    def flat_at_first(completion: str, answer: str, row: Any) -> float:
        n = next(calls)
        return 0.0 if n < 8 else float(n % 2)

    optim = OptimConfig(steps=4, prompts_per_step=2, lr=1e-3, schedule="linear", warmup_steps=1)
    train(config(model_folder, tmp_path / "run", optim=optim), letters(flat_at_first))
    found = records(tmp_path / "run")
    assert found[0]["packs"] == 0
    assert [r["lr"] for r in found] == pytest.approx([1e-3, 1e-3, 2e-3 / 3, 1e-3 / 3])


def test_a_run_that_is_stopped_keeps_its_policy(model_folder, tmp_path, capsys):
    calls = iter(range(10**6))

    def stops(completion: str, answer: str, row: Any) -> float:
        n = next(calls)
        if n >= 20:
            raise KeyboardInterrupt
        return float(n % 2)

    wanted = config(
        model_folder,
        tmp_path / "run",
        optim=OptimConfig(steps=9, prompts_per_step=2, lr=1e-3),
        run=RunConfig(folder=str(tmp_path / "run"), view="plain"),
    )
    with pytest.raises(KeyboardInterrupt):
        train(wanted, letters(stops))
    assert "stopped after step 2; the policy of then is in" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model") is not None


def test_a_last_evaluation_that_is_cut_short_loses_no_weights(model_folder, tmp_path, monkeypatch):
    from phloem.train.evaluation import Evaluator

    def interrupted(self, step: int, prompts: int, title: str) -> None:
        if step:
            raise KeyboardInterrupt

    monkeypatch.setattr(Evaluator, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(
            config(model_folder, tmp_path / "run", run=RunConfig(folder=str(tmp_path / "run"), view="none")), letters()
        )
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model") is not None


def test_a_prompt_that_leaves_no_room_is_named_before_the_first_step(model_folder, tmp_path):
    long = [Example("short", "a", "a"), Example("the-long-one", "ab" * 300, "a")]
    task = ExampleTask("letters", long, long, letters().reward)
    with pytest.raises(ConfigError, match=r"example the-long-one has 6\d\d tokens.*context of 512"):
        train(config(model_folder, tmp_path / "run"), task)


# Runs that must not look healthy


def test_a_run_that_changed_nothing_is_an_error(model_folder, tmp_path):
    """D06, C11: equal rewards everywhere leave every weight as it was."""
    with pytest.raises(TrainError, match="changed no weight"):
        train(config(model_folder, tmp_path / "run"), letters(lambda completion, answer, row: 1.0))
    assert all(r["zero_spread"] == 1.0 and r["grad_norm"] == 0.0 for r in records(tmp_path / "run"))


def test_rollouts_that_nobody_scored_train_nothing_and_are_counted(model_folder, tmp_path):
    """A03 on the way through the loop: None is not 0."""
    calls = iter(range(10**6))

    def sometimes(completion: str, answer: str, row: Any) -> float | None:
        n = next(calls)
        return None if n % 4 == 0 else float(n % 4 == 1)

    train(config(model_folder, tmp_path / "run"), letters(sometimes))
    for record in records(tmp_path / "run"):
        assert record["reward"] == pytest.approx(1 / 3)
        assert record["verdict/unscored_share"] == pytest.approx(1 / 4)
        assert np.isfinite(record["loss"])


def test_budgets_too_short_for_anything_are_announced(model_folder, tmp_path, capsys):
    """A35: all rollouts clipped and all groups without a spread, step after step."""

    def long_only(completion: str, answer: str, row: Any) -> float:
        return float(len(completion) > 500)

    wanted = config(
        model_folder,
        tmp_path / "run",
        sample=SampleConfig(thoughts=4, answers=1, thought_tokens=1, answer_tokens=1, temperature=0.05),
        optim=OptimConfig(steps=4, prompts_per_step=2, lr=1e-3),
        run=RunConfig(folder=str(tmp_path / "run"), view="plain", save_model=False),
        alarms=AlarmsConfig(clipped=2),
    )
    with pytest.raises(TrainError):
        train(wanted, letters(long_only))
    said = capsys.readouterr().out
    assert "for 2 steps every rollout hit its budget of 2 tokens" in said
    assert "raise sample.thought_tokens" in said
    stopping = AlarmsConfig(clipped=2, stop=("clipped",))
    with pytest.raises(TrainError, match="for 2 steps"):
        train(
            replace(wanted, run=replace(wanted.run, folder=str(tmp_path / "stop")), alarms=stopping), letters(long_only)
        )
    assert len(records(tmp_path / "stop")) == 2


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_examples_than_a_batch_is_an_error_before_a_model_loads(tmp_path, count):
    """C11."""
    wanted = config(tmp_path / "nowhere", tmp_path / "run", optim=OptimConfig(steps=1, prompts_per_step=4))
    with pytest.raises(ConfigError, match=f"{count} training examples and optim.prompts_per_step is 4"):
        train(wanted, letters(count=count))
    assert not (tmp_path / "run").exists()


def test_other_impossible_requests_are_errors_before_a_model_loads(tmp_path):
    nowhere = tmp_path / "nowhere"
    with pytest.raises(ConfigError, match=r"held-out examples and evaluation\.prompts"):
        train(config(nowhere, tmp_path / "a", evaluation=EvaluationConfig(prompts=100)), letters())
    bare = letters()
    bare = replace(bare, train=[replace(e, demonstrations=()) for e in bare.train])
    with pytest.raises(ConfigError, match="no demonstrations"):
        train(config(nowhere, tmp_path / "b", cold_start=ColdStartConfig(steps=1)), bare)
    with pytest.raises(ConfigError, match="did you mean 'grpo-ma'"):
        train(config(nowhere, tmp_path / "c", credit=CreditConfig(preset="grpo_ma")), letters())
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": 2}\n')
    data = TaskConfig(name="data", args={"path": str(tmp_path / "rows.jsonl"), "reward": "number"})
    with pytest.raises(TaskError, match="no column 'prompt'; it has question, answer"):  # C01
        train(config(nowhere, tmp_path / "d", task=data))


def test_a_folder_that_holds_a_run_is_not_written_over(model_folder, tmp_path):
    train(config(model_folder, tmp_path / "run"), letters())
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="holds a run already"):
        train(config(model_folder, tmp_path / "run"), letters())
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_gradient_that_is_not_finite_stops_the_run(model_folder, tmp_path, monkeypatch):
    from phloem.train import step as step_module

    monkeypatch.setattr(step_module, "surrogate", lambda new, *rest: new * float("nan"))
    with pytest.raises(TrainError, match=r"gradient of step \d is not finite"):
        train(config(model_folder, tmp_path / "run"), letters())


def test_weights_that_are_not_numbers_are_said_so(model_folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model_folder, broken)
    model = AutoModelForCausalLM.from_pretrained(broken)
    model.lm_head.weight.data.fill_(float("nan"))
    model.save_pretrained(broken)
    with pytest.raises((PhloemError, FloatingPointError), match=r"finite|numbers"):
        train(config(broken, tmp_path / "run"), letters())
