"""A run that goes on is the run that never stopped; what cannot be gone on with is refused or skipped with a reason."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from letters_run import letters, letters_config, share_of_a
from safetensors.torch import load_file
from short_runs import metrics, quick_train, untimed
from transformers import AutoModelForCausalLM, AutoTokenizer

from phloem import (
    ColdStartConfig,
    CreditConfig,
    EvaluationConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
)
from phloem.cli import main
from phloem.config import ConfigError
from phloem.kinds import PhloemError, Stopped
from phloem.train import TrainError
from phloem.train.checkpoint import Checkpoints
from phloem.train.resume import require_same_run, settings_of_run

pytestmark = pytest.mark.model


class Killed(BaseException):
    """Stands for a kill: nothing in the run catches it."""


def dying(calls: int) -> Any:
    """The reward of `letters` until so many calls, then death."""
    left = iter(range(calls))

    def reward(completion: str, answer: Any, row: Any) -> float:
        if next(left, None) is None:
            raise Killed
        return share_of_a(completion, answer, row)

    return reward


def config(model_path: Path, folder: Path, **sections: Any) -> TrainConfig:
    """Six steps on a schedule, with evaluations in between and a checkpoint after each step."""
    own = {
        "optim": OptimConfig(steps=6, prompts_per_step=3, lr=1e-2, schedule="linear", warmup_steps=2),
        "evaluation": EvaluationConfig(prompts=2, samples=2, every=2, prompts_between=2),
        "run": RunConfig(folder=str(folder), view="none", checkpoint_every=1),
    }
    return letters_config(model_path, folder, **(own | sections))


def assert_goes_on_as_if_never_stopped(wanted: TrainConfig, whole: Path) -> None:
    """Resumes a run, makes the same one in the folder `whole`, and compares their figures."""
    quick_train(wanted, letters(), resume=True)
    quick_train(replace(wanted, run=replace(wanted.run, folder=str(whole))), letters())
    assert untimed(metrics(Path(wanted.run.folder or ""))) == untimed(metrics(whole))


def same_runs(one: Path, other: Path) -> None:
    """The same weights, optimiser and reference, bit for bit."""
    files = [str(path.relative_to(one)) for path in one.rglob("*.safetensors")]
    assert any("optimiser" in name for name in files)
    for name in files:
        expected, found = load_file(one / name), load_file(other / name)
        assert found.keys() == expected.keys(), name
        assert all(torch.equal(found[key], expected[key]) for key in found), name


KINDS = {
    "weights": {},
    "adapters with dropout": {"lora": LoraConfig(rank=4, dropout=0.3)},
}


@pytest.fixture(scope="module", params=KINDS)
def left_alone(request, model_folder, tmp_path_factory) -> tuple[TrainConfig, Path]:
    """A run with a reference, a cold start and evaluations in between that nothing disturbed."""
    run = tmp_path_factory.mktemp("alone") / "run"
    wanted = config(
        model_folder,
        run,
        model=ModelConfig(path=str(model_folder), **KINDS[request.param]),
        credit=CreditConfig(preset="grpo", beta=0.05),
        cold_start=ColdStartConfig(steps=2, batch_size=2, lr=1e-3),
    )
    quick_train(wanted, letters())
    return wanted, run


def test_a_run_killed_three_times_is_the_run_that_was_left_alone(left_alone, tmp_path):
    wanted, alone = left_alone
    run = tmp_path / "run"
    wanted = replace(wanted, run=replace(wanted.run, folder=str(run)))
    for n, calls in enumerate((20, 30, 1, None)):
        reward = share_of_a if calls is None else dying(calls)
        if calls is None:
            result = quick_train(wanted, letters(reward), resume=True)
            assert result.gain is not None
        else:
            with pytest.raises(Killed):
                quick_train(wanted, letters(reward), resume=n > 0)
    same_runs(alone, run)
    assert untimed(metrics(run)) == untimed(metrics(alone))
    assert (run / "rollouts.jsonl").read_bytes() == (alone / "rollouts.jsonl").read_bytes()
    assert len(json.loads((run / "env.json").read_text())["resumed"]) == 3
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (run, alone))
    for name in ("before", "after", "gain"):
        assert ours[name] == theirs[name]


def test_d05_a_checkpoint_that_is_not_complete_is_skipped_with_a_line(model_folder, tmp_path, capsys):
    """D05: half of a save, a file cut short, one with other content: the one before is taken."""
    every = RunConfig(str(tmp_path / "run"), view="plain", checkpoint_every=1, keep_checkpoints=9)
    wanted = config(model_folder, tmp_path / "run", run=every)
    with pytest.raises(Killed):
        quick_train(wanted, letters(dying(71)))
    places = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [place.name for place in places] == [f"step-{n:06d}" for n in range(5)]
    cut, changed, bare = places[4] / "optimiser.safetensors", places[3] / "model" / "model.safetensors", places[2]
    cut.write_bytes(cut.read_bytes()[:-9])
    content = bytearray(changed.read_bytes())
    content[-3] ^= 1
    changed.write_bytes(content)
    (bare / "state.json").unlink()
    shutil.copytree(places[1], places[1].with_name("step-000009.new"))  # a kill while it was written
    quick_train(wanted, letters(), resume=True)
    said = capsys.readouterr().out
    assert "step-000004 is skipped, it is not complete: optimiser.safetensors has" in said
    assert "step-000003 is skipped, it is not complete: model/model.safetensors has" in said
    assert "step-000002 is skipped, it is not complete: [Errno 2]" in said
    assert "going on after step 1 of 6" in said
    assert [r["step"] for r in metrics(tmp_path / "run", "train")] == [1, 2, 3, 4, 5, 6]


def test_d01_a_run_goes_on_past_the_end_of_an_epoch(model_folder, tmp_path):
    """D01: a checkpoint at the end of an epoch is not the end of the run."""
    optim = OptimConfig(steps=2, prompts_per_step=4, lr=1e-2)  # 8 examples: one epoch
    wanted = config(model_folder, tmp_path / "run", optim=optim)
    quick_train(wanted, letters())
    with pytest.raises(ConfigError, match=r"has taken its 2 steps: set optim\.steps above 2"):
        quick_train(wanted, letters(), resume=True)
    longer = replace(wanted, optim=replace(optim, steps=4))
    assert quick_train(longer, letters(), resume=True).steps == 4
    whole = replace(longer, run=replace(wanted.run, folder=str(tmp_path / "whole")))
    quick_train(whole, letters())
    found, expected = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "whole"))
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_d06_an_update_that_changes_no_weight_is_an_error_at_once(model_folder, tmp_path):
    """D06: after the first update by a gradient at least one weight changed; the saved one differs from the loaded."""
    half = ModelConfig(path=str(model_folder), dtype="bfloat16")
    wanted = config(
        model_folder, tmp_path / "run", model=half, optim=OptimConfig(steps=6, prompts_per_step=3, lr=1e-12)
    )
    with pytest.raises(TrainError, match=r"^1 steps changed no weight: the learning rate .*raise it"):
        quick_train(wanted, letters())
    adapted = replace(
        config(model_folder, tmp_path / "adapted", optim=OptimConfig(steps=1, prompts_per_step=4, lr=1e-3)),
        model=ModelConfig(path=str(model_folder), lora=LoraConfig(rank=2)),
    )
    quick_train(adapted, letters())
    first = load_file(tmp_path / "adapted" / "model" / "adapter_model.safetensors")
    again = replace(
        adapted,
        model=ModelConfig(path=str(tmp_path / "adapted" / "model")),
        run=replace(adapted.run, folder=str(tmp_path / "again")),
    )
    quick_train(again, letters())
    second = load_file(tmp_path / "again" / "model" / "adapter_model.safetensors")
    assert first.keys() == second.keys()
    assert any(not torch.equal(first[key], second[key]) for key in first)


def test_a_run_killed_before_its_first_checkpoint_starts_anew(model_folder, tmp_path):
    wanted = config(model_folder, tmp_path / "run", cold_start=ColdStartConfig(steps=2, batch_size=2))
    with pytest.raises(Killed):
        quick_train(wanted, letters(dying(2)))
    assert not (tmp_path / "run" / "checkpoints").exists()
    quick_train(wanted, letters(), resume=True)
    assert len(metrics(tmp_path / "run", "train")) == 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_and_keeps_a_checkpoint(model_folder, tmp_path, number):
    wanted = config(
        model_folder, tmp_path / "run", run=RunConfig(str(tmp_path / "run"), view="none", checkpoint_every=100)
    )
    before = signal.getsignal(signal.SIGINT)  # a shell without a terminal may have it ignored
    calls = iter(range(10**6))

    def signals(completion: str, answer: Any, row: Any) -> float:
        if next(calls) == 30:
            os.kill(os.getpid(), number)
        return share_of_a(completion, answer, row)

    with pytest.raises(Stopped, match=r"stopped after step 2; go on with `phloem train --resume .*run`") as stopped:
        quick_train(wanted, letters(signals))
    assert stopped.value.signal == number
    assert signal.getsignal(signal.SIGINT) == before
    assert_goes_on_as_if_never_stopped(wanted, tmp_path / "whole")


def test_only_the_newest_checkpoints_stay_and_anybody_can_load_them(model_folder, tmp_path):
    wanted = config(model_folder, tmp_path / "run")
    quick_train(replace(wanted, run=replace(wanted.run, keep_checkpoints=2)), letters())
    places = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [place.name for place in places] == ["step-000005", "step-000006"]
    last = AutoModelForCausalLM.from_pretrained(places[-1] / "model").state_dict()
    final = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict()
    assert all(torch.equal(last[key], final[key]) for key in final)
    assert AutoTokenizer.from_pretrained(places[-1] / "model").eos_token == "</s>"
    expected = stat.S_IMODE((tmp_path / "run" / "config.yaml").stat().st_mode)
    for path in (tmp_path / "run").rglob("*.safetensors"):
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_a_run_that_saves_no_model_leaves_no_checkpoints(model_folder, tmp_path):
    wanted = config(model_folder, tmp_path / "run")
    quick_train(replace(wanted, run=replace(wanted.run, save_model=False)), letters())
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_other_settings_and_other_data_are_refused_by_name(model_folder, tmp_path):
    wanted = config(model_folder, tmp_path / "run")
    with pytest.raises(Killed):
        quick_train(wanted, letters(dying(4 * 8 + 20)))
    other = replace(wanted, optim=replace(wanted.optim, lr=1e-3), run=replace(wanted.run, seed=3))
    with pytest.raises(ConfigError, match=r"optim\.lr \(0\.01 there, 0\.001 now\), run\.seed \(0 there, 3 now\)"):
        quick_train(other, letters(), resume=True)
    kept = settings_of_run(tmp_path / "run")
    require_same_run(replace(kept, run=replace(kept.run, trackers=("wandb",))))  # this may change
    with pytest.raises(ConfigError, match="training examples are not those"):
        quick_train(wanted, letters(count=7), resume=True)
    with pytest.raises(ConfigError, match=r"nowhere is not a run folder"):
        quick_train(replace(wanted, run=replace(wanted.run, folder=str(tmp_path / "nowhere"))), letters(), resume=True)
    assert len(metrics(tmp_path / "run")) > 1


def test_a_config_changed_by_hand_is_other_settings_too(model_folder, tmp_path):
    run = tmp_path / "run"
    wanted = config(model_folder, run, optim=OptimConfig(steps=2, prompts_per_step=2, lr=1e-2))
    quick_train(wanted, letters())
    place = run / "config.yaml"
    place.write_text(place.read_text().replace("lr: 0.01", "lr: 0.5"))
    changed = settings_of_run(run)
    with pytest.raises(ConfigError, match=r"optim\.lr \(0\.01 there, 0\.5 now\)"):
        quick_train(replace(changed, optim=replace(changed.optim, steps=3)), letters(), resume=True)


def test_a_run_that_may_not_go_on_is_left_as_it_was(model_folder, tmp_path):
    run = tmp_path / "run"
    wanted = config(model_folder, run, optim=OptimConfig(steps=2, prompts_per_step=2, lr=1e-2))
    quick_train(wanted, letters())
    before = {name: (run / name).read_bytes() for name in ("config.yaml", "env.json", "metrics.jsonl")}
    with pytest.raises(ConfigError, match="has taken its 2 steps"):
        quick_train(replace(wanted, optim=replace(wanted.optim, steps=1)), letters(), resume=True)
    shutil.rmtree(run / "checkpoints")
    longer = replace(wanted, optim=replace(wanted.optim, steps=3))
    with pytest.raises(ConfigError, match="has logged 2 steps, and has no complete checkpoint to go on from"):
        quick_train(longer, letters(), resume=True)
    assert {name: (run / name).read_bytes() for name in before} == before


def test_logs_that_lost_lines_are_named_and_gone_on_with(model_folder, tmp_path, capsys):
    run = tmp_path / "run"
    shown = RunConfig(str(run), view="plain", checkpoint_every=1)
    wanted = config(model_folder, run, optim=OptimConfig(steps=2, prompts_per_step=2, lr=1e-2), run=shown)
    quick_train(wanted, letters())
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(whole[:300])
    (run / "env.json").write_text("[1]")
    quick_train(replace(wanted, optim=replace(wanted.optim, steps=3)), letters(), resume=True)
    said = capsys.readouterr().out
    assert "WARNING" in said
    assert "metrics.jsonl has lost lines: 300 bytes of" in said
    assert "seconds per step" in said
    assert [r["step"] for r in metrics(run, "train")] == [3]
    assert len(json.loads((run / "env.json").read_text())["resumed"]) == 1


def test_rollouts_that_are_not_kept_for_a_while_stay(model_folder, tmp_path):
    """What was kept before stays, and lines of steps taken again go, whether or not this part of the run keeps any."""
    run = tmp_path / "run"
    wanted = config(model_folder, run, optim=OptimConfig(steps=2, prompts_per_step=2, lr=1e-2))
    quick_train(wanted, letters())
    for steps, kept in ((3, False), (4, True)):
        changed = replace(wanted.run, save_rollouts=kept)
        quick_train(replace(wanted, optim=replace(wanted.optim, steps=steps), run=changed), letters(), resume=True)
    lines = (run / "rollouts.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 1, 2, 2, 4, 4]


def test_the_command_line_goes_on_with_a_folder(model_folder, tmp_path, capsys):
    run = tmp_path / "run"
    (tmp_path / "length.py").write_text("def letters(completion, answer, row): return float(len(set(completion)))\n")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{c}", "answer": "a"}}\n' for c in "abcdefgh"))
    words = ["--model.path", str(model_folder), "--task.name", "data", "--task.held_out_size", "1"]
    words += ["--task.args.path", str(tmp_path / "rows.jsonl"), "--task.args.reward", f"{tmp_path}/length.py:letters"]
    words += ["--sample.thoughts", "4", "--sample.answers", "1", "--sample.thought_tokens", "3", "--optim.lr", "0.01"]
    words += ["--sample.answer_tokens", "2", "--optim.prompts_per_step", "2", "--evaluation.prompts", "0"]
    words += ["--run.view", "none"]
    assert main(["train", "--resume", str(run)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["train", *words, "--optim.steps", "1", "--run.folder", str(run)]) == 0
    assert main(["train", "--resume", str(run), "--optim.lr", "1"]) == 2
    assert "optim.lr" in capsys.readouterr().err
    assert main(["train", "--resume", str(run), "--config", str(run / "config.yaml")]) == 2
    assert main(["train", "--resume", str(run)]) == 2
    assert "set optim.steps above 1" in capsys.readouterr().err
    assert main(["train", "--resume", str(run), "--run.folder", str(tmp_path / "other")]) == 2
    assert "leave --run.folder out" in capsys.readouterr().err
    assert main(["train", "--dry_run", "--resume", str(run), "--optim.lr", "1"]) == 2
    assert "optim.lr" in capsys.readouterr().err
    assert main(["train", "--dry_run", "--resume", str(run), "--optim.steps", "2"]) == 0
    shown = ["--run.time_rows", "false", "--evaluation.shown", "1", "--run.project", "mine"]
    assert main(["train", "--resume", str(run), "--optim.steps", "2", *shown]) == 0
    assert [r["step"] for r in metrics(run, "train")] == [1, 2]


def test_a_disk_too_small_for_checkpoints_is_named_before_the_first_step(model_folder, tmp_path, monkeypatch):
    wanted = config(model_folder, tmp_path / "run")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    with pytest.raises(PhloemError, match=r"checkpoints needs .* MB for checkpoints, .* 1\.0 MB free: make room"):
        quick_train(wanted, letters())
    assert not (tmp_path / "run").exists()  # nothing was logged


def test_a_disk_that_fills_up_on_the_way_loses_no_checkpoint(model_folder, tmp_path, monkeypatch):
    wanted = config(model_folder, tmp_path / "run")
    save, usage = Checkpoints.save, shutil.disk_usage

    def full(self, saved, *rest):
        save(self, saved, *rest)
        if saved.progress.step == 3:
            monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=0))

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(PhloemError, match="for the checkpoint of step 4, and its disk has 0"):
        quick_train(wanted, letters())
    monkeypatch.undo()
    assert_goes_on_as_if_never_stopped(wanted, tmp_path / "whole")


def test_two_processes_cannot_go_on_with_the_same_run(model_folder, tmp_path):
    wanted = config(model_folder, tmp_path / "run")
    with pytest.raises(Killed):
        quick_train(wanted, letters(dying(4 * 8 + 20)))
    hold = f"import fcntl, sys; f = open({str(tmp_path / 'run' / '.lock')!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
    hold += "print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ConfigError, match="another process is writing the run"):
            quick_train(wanted, letters(), resume=True)
        other.communicate(b"")
    quick_train(wanted, letters(), resume=True)


def test_adapters_are_exported_merged(model_folder, tmp_path, capsys):
    wanted = config(
        model_folder,
        tmp_path / "run",
        model=ModelConfig(path=str(model_folder), lora=LoraConfig(rank=4)),
        optim=OptimConfig(steps=1, prompts_per_step=4, lr=1e-2),
    )
    result = quick_train(wanted, letters())
    run, plain = str(tmp_path / "run"), tmp_path / "plain"
    assert main(["export", run, str(plain)]) == 0
    assert "adapters merged" in capsys.readouterr().out
    assert main(["export", run, str(plain)]) == 2
    assert main(["export", str(tmp_path), str(tmp_path / "other")]) == 2
    model = AutoModelForCausalLM.from_pretrained(plain)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, result.model.eval()(ids).logits, rtol=1e-4, atol=1e-5)
        base = AutoModelForCausalLM.from_pretrained(model_folder)
        assert (model(ids).logits - base(ids).logits).abs().max() > 1e-3
