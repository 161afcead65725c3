"""Runs that cannot be: each ends with one screen that names the thing and the remedy, a status above 0, nothing lost.

All go through the command line, in this process, on a tiny model and a file of a dozen rows.
"""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from short_runs import metrics
from tiny_models import save_tiny_model

from phloem.cli import main

pytestmark = pytest.mark.model

REWARDS = """
import math
def good(completion): return float(len(set(completion)))
def not_a_number(completion): return math.nan
def text(completion): return "good"
def raises(completion): raise ZeroDivisionError("no tokens to divide by")
def too_few(completions): return [0.0] * (len(completions) - 1)
def a_number(completions): return 1.0
def positional(prompt, text): return 1.0
def equal(completion): return 1.0
calls = iter(range(4))
def breaks_off(completion): return [next(calls), 1.0][1]
"""
SCREEN = (24, 100)
"""Lines, and columns at which a terminal breaks them."""


def rows(count: int) -> list[str]:
    return [json.dumps({"prompt": f"{n} + {n}?", "answer": str(2 * n)}) for n in range(count)]


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Path:
    """A model, data sets and rewards; cases that spoil something do so to a copy."""
    folder = tmp_path_factory.mktemp("material")
    save_tiny_model(folder / "model")
    (folder / "mine.py").write_text(REWARDS)
    (folder / "broken.py").write_text("def good(completion) return 1\n")
    (folder / "rows.jsonl").write_text("\n".join(rows(12)))
    return folder


@pytest.fixture
def place(material, tmp_path, monkeypatch) -> Path:
    """An empty folder to run in that sees the material."""
    for thing in material.iterdir():
        (tmp_path / thing.name).symlink_to(thing)
    monkeypatch.chdir(tmp_path)
    return tmp_path


BASE = {
    "model.path": "model",
    "task.name": "data",
    "task.args.path": "rows.jsonl",
    "task.args.reward": "mine.py:good",
    "task.held_out_size": "2",
    "sample.thoughts": "2",
    "sample.answers": "1",
    "sample.thought_tokens": "4",
    "sample.answer_tokens": "4",
    "credit.preset": "grpo",
    "optim.steps": "2",
    "optim.prompts_per_step": "2",
    "optim.lr": "1e-3",
    "evaluation.prompts": "0",
    "run.folder": "run",
    "run.view": "none",
}


def run(*words: str, **changes: str | None) -> int:
    """`phloem train` with the settings above; `task__name=None` leaves one out, `task__args__x="1"` adds one."""
    given = BASE | {name.replace("__", "."): value for name, value in changes.items()}
    arguments = [word for name, value in given.items() if value is not None for word in (f"--{name}", value)]
    return main(["train", *words, *arguments])


def test_the_run_that_the_others_spoil_is_fine(place):
    assert run() == 0
    assert (place / "run" / "summary.json").exists()


def test_a_reward_may_switch_gradients_off_for_itself(place):
    (place / "quiet.py").write_text(
        "import torch\ntorch.set_grad_enabled(False)\n"
        "def good(completion): torch.set_grad_enabled(False); return float(len(set(completion)))\n"
    )
    try:
        assert run(task__args__reward="quiet.py:good") == 0
    finally:
        torch.set_grad_enabled(True)


@dataclass(frozen=True)
class Bad:
    """What is spoilt, and what the error must say. `begun`: the run had taken steps, whose records must be there."""

    name: str
    says: tuple[str, ...]
    changes: dict[str, str | None]
    spoil: Callable[[Path], object] = lambda place: None
    words: tuple[str, ...] = ()
    begun: bool = False


def bad(name: str, *says: str, spoil=lambda place: None, words=(), begun=False, **changes) -> Bad:
    return Bad(name, says, changes, spoil, words, begun)


def write(name: str, text: str | bytes) -> Callable[[Path], object]:
    """Writes a file into the folder of the run."""
    return lambda place: (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def bad_data(name: str, text: str | bytes, *says: str, **changes) -> Bad:
    """A run on a file of this text."""
    return bad(name, *says, spoil=write("own.jsonl", text), task__args__path="own.jsonl", **changes)


def own_model(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """A copy of the model, called `own`, with something changed."""

    def spoil(place: Path) -> None:
        shutil.copytree(place / "model", place / "own")
        change(place / "own")

    return spoil


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


CASES = [
    # Settings
    bad("a key of a file", "bad.yaml, line 2: sample.thougts is not a setting; did you mean sample.thoughts?",
        spoil=write("bad.yaml", "sample:\n  thougts: 3\n"), words=("--config", "bad.yaml")),  # G04
    bad("a key twice", "bad.yaml", "line 2: optim is given twice",
        spoil=write("bad.yaml", "optim: {steps: 1}\noptim: {lr: 1}\n"), words=("--config", "bad.yaml")),
    bad("an option", "optim.learning_rate is not a setting; did you mean optim.", optim__learning_rate="1"),
    bad("a type", "optim.steps is 'many'; it takes a whole number", optim__steps="many"),
    bad("a dtype", "model.dtype is 'float8'; it takes one of float32, bfloat16", model__dtype="float8"),
    bad("a group of one", "is 1: a group of one rollout has no baseline", "raise one of them", sample__thoughts="1"),
    bad("no budget", "sample.answer_tokens is 0; it must be at least 1", sample__answer_tokens="0"),
    bad("a preset", "no preset is called 'grppo'; did you mean 'grpo'?", credit__preset="grppo"),
    bad("clip off with a bound", "credit.clip is false and a clip bound is set: drop one of the two",
        credit__clip="false", credit__clip_low="0.1"),
    bad("warm-up without end", "optim.warmup_steps is 5 and optim.steps 2", optim__warmup_steps="5"),
    bad("an alarm that is off", "alarms.stop names kl, and alarms.kl is off", alarms__stop="[kl]", alarms__kl="null"),
    bad("a cold start without demonstrations", "task rows has no demonstrations", "set it to 0", cold_start__steps="3"),
    # Data
    bad("no file", "no file nowhere.jsonl", task__args__path="nowhere.jsonl"),
    bad("a missing column", "rows.jsonl has no column 'question'; it has prompt, answer", "Set task.args.prompt",
        task__args__prompt="question"),  # C01
    bad_data("an empty file", "", "own.jsonl has no rows"),  # C11
    bad_data("one row", "\n".join(rows(1)), "too few to hold out 2"),
    bad_data("a row short of a batch", "\n".join(rows(3)), "1 training examples and optim.prompts_per_step is 2"),
    bad_data("a corrupt line", "\n".join([*rows(2), '{"prompt": ']), "own.jsonl line 3 is not JSON"),
    bad_data("bytes", b"\xff\xfe\x00", "own.jsonl is not UTF-8 text"),
    bad_data("a number for a prompt", '{"prompt": 3, "answer": 6}\n', "row 1: a prompt is a text or a list"),
    bad_data("an empty prompt", "\n".join(['{"prompt": "", "answer": 6}', *rows(12)]),
             "1 of 13 rows have an empty prompt: rows 1.", "task.args.unusable to drop"),
    bad_data("a prompt beyond the context", "\n".join([*rows(11), json.dumps({"prompt": "x" * 600, "answer": "1"})]),
             "has 6", "over the model's context of 512", evaluation__prompts="2"),
    bad("a task", "task.name is 'sum'; did you mean sums?", task__name="sum", task__args__path=None,
        task__args__reward=None),
    bad("a template that YAML takes for a mapping", "task.args.template is {'Q': {'prompt': None}}",
        "put quotes around the text", task__args__template="Q: {prompt}"),
    bad("an argument of a task", "task.args.promt is not an argument of this task", task__args__promt="q"),
    # Rewards
    bad("a reward", "no reward 'numbr': use one of exact, number", task__args__reward="numbr"),
    bad("a reward's file", "no file nowhere.py", task__args__reward="nowhere.py:good"),
    bad("a reward's name", "no function 'best' there; found", "good", task__args__reward="mine.py:best"),
    bad("a reward that is no Python", "broken.py:good", "SyntaxError", task__args__reward="broken.py:good"),
    bad("a reward's parameters", "positional(prompt, text): parameters are given by name", "completion, answer, row",
        task__args__reward="mine.py:positional"),
    bad("a reward of NaN", "mine.py:not_a_number", "nan", "(example rows:", task__args__reward="mine.py:not_a_number",),
    bad("a reward of text", "mine.py:text", "'good'", task__args__reward="mine.py:text"),
    bad("a reward of another length", "mine.py:too_few returned 3 rewards for 4 completions; return one for each",
        task__args__reward="mine.py:too_few"),
    bad("a reward of no list", "mine.py:a_number takes a batch and must return a list; it returned float",
        task__args__reward="mine.py:a_number"),
    bad("a reward that raises", "ZeroDivisionError: no tokens to divide by", "mend the reward",
        task__args__reward="mine.py:raises", begun=True),
    bad("a reward that breaks off", "2 steps changed no weight: no group had a spread of rewards (mean reward 1.00",
        task__args__reward="mine.py:breaks_off", begun=True),
    bad("equal rewards", "2 steps changed no weight: no group had a spread of rewards (mean reward 1.00",
        task__args__reward="mine.py:equal", begun=True),
    bad("a budget too short, told to stop", "every rollout hit its budget of 2 tokens", "raise sample.thought_tokens",
        sample__thought_tokens="1", sample__answer_tokens="1", sample__temperature="0.01",
        task__args__reward="mine.py:equal", alarms__clipped="1", alarms__stop="[clipped]", begun=True),
    # Models
    bad("a model", "model.path ./no/such/model does not exist", model__path="./no/such/model"),
    bad("a folder without a model", "the folder own could not be loaded", "config.json, weights and tokenizer",
        spoil=lambda place: (place / "own").mkdir(), model__path="own"),
    bad("weights cut short", "the folder own could not be loaded", spoil=own_model(cut_short), model__path="own",),
    bad("no chat template", "has no chat template: set task.chat_template to false", spoil=own_model(without_template),
        model__path="own"),
    bad("adapters on nothing", "model.lora.target_modules ['nothing'] does not fit this model",
        model__lora__rank="2", model__lora__target_modules="[nothing]"),
    bad("a rate that moves nothing", "changed no weight: the learning rate (optim.lr 1e-30) is too small",
        optim__lr="1e-30", begun=True),
    # Places
    bad("a folder below a file", "run.folder rows.jsonl/run cannot be written", "name another one",
        run__folder="rows.jsonl/run"),
    bad("a folder with a run", "run.folder old holds a run already", run__folder="old",
        spoil=lambda place: ((place / "old").mkdir(), (place / "old" / "metrics.jsonl").write_text("{}\n"))),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_run_is_one_screen_that_names_the_thing_and_the_remedy(place, capsys, case):
    case.spoil(place)
    before = contents(place)
    status = run(*case.words, **case.changes)
    err = capsys.readouterr().err
    assert status in (1, 2), err
    assert err.startswith("phloem: ")
    assert "Traceback" not in err
    assert sum(1 + len(line) // SCREEN[1] for line in err.splitlines()) <= SCREEN[0], err
    for words in case.says:
        assert words in err
    assert {name: text for name, text in contents(place).items() if name in before} == before  # nothing lost
    if case.begun:
        assert [line["step"] for line in metrics(place / "run", "train")]
    else:
        assert not (place / "run").exists() or list((place / "run").iterdir())


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """A disk on which a file has room for so many bytes; the error that Python raises is a full disk's sibling."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [8000, 40_000])
def test_a_full_disk_is_named_and_keeps_the_lines_written_before(place, capsys, room):
    """Full while rollouts are written, and while the model is saved."""
    with no_file_longer_than(room):
        status = run(optim__steps="3", optim__prompts_per_step="1", sample__thoughts="16", run__checkpoint_every="0")
    err = capsys.readouterr().err
    assert status == 1
    assert "phloem: run/" in err
    assert "cannot be written" in err
    assert "make room on its disk, or name another run.folder" in err
    assert err.count("\n") <= 3
    assert metrics(place / "run")
    assert not (place / "run" / "model").exists()
    assert not list((place / "run").rglob("*.new"))
