"""The command line: what it accepts, what it refuses, and with which words."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from phloem import TrainConfig, __version__
from phloem.cli import COMMANDS, main
from phloem.config import CreditConfig, SampleConfig
from phloem.presets import PRESETS, from_config, resolved
from phloem.settings import settings, to_yaml
from phloem.tasks import names


def run(capsys, *words: str) -> tuple[int, str, str]:
    status = main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_overview_lists_every_command(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert run(capsys, "--help")[1] == out
    assert run(capsys, "--version")[1] == f"{__version__}\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_refuses_what_it_does_not_know(capsys, name):
    status, out, _ = run(capsys, name, "--help")
    assert status == 0
    assert out.startswith(f"usage: phloem {name}")
    status, out, err = run(capsys, name, "--no-such-thing", "1")
    assert (status, out) == (2, "")
    assert "no-such-thing" in err


def test_train_help_shows_every_setting(capsys):
    out = run(capsys, "train", "--help")[1]
    assert all(f"  --{name} " in out for name in settings())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "trian is not a command; did you mean train?"),
        (["train", "--sample.thougts", "3"], "sample.thougts is not a setting; did you mean sample.thoughts?"),
        (["train", "--sample.thougts=3"], "sample.thougts is not a setting; did you mean sample.thoughts?"),
        (["train", "--sample.tho", "3"], "sample.tho is not a setting; did you mean sample.thoughts?"),
        (["train", "--sample", "3"], "sample is a section"),
        (["train", "--sample.thoughts", "x"], "sample.thoughts is 'x'; it takes a whole number"),
        (["train", "--optim.lr", "-1e-3"], "optim.lr is -0.001; it must be positive"),
        (["train", "--optim.lr"], "--optim.lr has no value"),
        (["train", "demo.yaml"], "'demo.yaml' stands alone"),
        (["train", "--config", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["train", "--task.args", "3"], "task.args is 3; it takes a mapping"),
        (["presets", "grpo-m"], "grpo-m is not a preset; did you mean grpo-ma?"),
    ],
)
def test_what_cannot_be_honoured_is_one_line_and_status_2(capsys, words, message):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith("phloem: ")
    assert message in err
    assert err.count("\n") == 1


def test_print_config_is_the_resolved_yaml(capsys):
    out = run(capsys, "train", "--print_config", "--sample.thoughts", "8")[1]
    credit = resolved(CreditConfig(), 96)
    assert out == to_yaml(TrainConfig(sample=SampleConfig(thoughts=8), credit=credit))
    assert (credit.unit, credit.normaliser, credit.clip_low, credit.beta) == ("segment", "segment", 0.2, 0.0)


@pytest.mark.parametrize("name", PRESETS)
def test_what_print_config_writes_is_the_same_rule(name):
    written = resolved(CreditConfig(preset=name), 96)
    assert from_config(written, 96) == from_config(CreditConfig(preset=name), 96)
    assert None not in (written.unit, written.baseline, written.scale, written.eps, written.beta, written.clip)


def test_arguments_beat_files_wherever_config_stands(capsys, tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("sample: {thoughts: 5, answers: 5}\noptim: {lr: 1e-3}\nmodel: {lora: {target_modules: [q]}}")
    second.write_text("sample: {answers: 6}\n")
    files = ["--config", str(first), f"--config={second}"]
    values = ["--sample.thoughts", "7", "--model.lora.target_modules=[v]"]
    for words in ([*files, *values], [*values, *files], [values[0], values[1], *files, values[2]]):
        resolved = yaml.safe_load(run(capsys, "train", "--print_config", *words)[1])
        assert resolved["sample"] | {"thoughts": 7, "answers": 6} == resolved["sample"]
        assert resolved["model"]["lora"]["target_modules"] == ["v"]
        assert resolved["optim"]["lr"] == 1e-3


def test_presets_are_listed_and_explained(capsys):
    out = run(capsys, "presets")[1]
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(PRESETS)
    out = run(capsys, "presets", "grpo-ma")[1]
    assert PRESETS["grpo-ma"].equation in out


def test_tasks_are_listed(capsys):
    out = run(capsys, "tasks")[1]
    assert {line.split()[0] for line in out.splitlines()} == set(names())


def test_a_closed_pipe_is_no_traceback():
    command = f"{sys.executable} -m phloem train --help | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
