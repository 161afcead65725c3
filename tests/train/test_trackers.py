"""Trackers get what metrics.jsonl holds; one that is missing is an error before a model loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from short_runs import metrics
from tiny_run import tiny_run

from phloem import ConfigError, RunConfig, TrainConfig
from phloem.train.completions import as_markdown
from phloem.train.trackers import Trackers, require_trackers

FAKE = """
import json
class Table:
    def __init__(self, columns, data):
        self.columns, self.data = columns, data
class Run:
    def __init__(self, settings):
        self.lines = [settings]
    def define_metric(self, name, step_metric):
        self.lines.append({"metric": name, "over": step_metric})
    def log(self, values):
        self.lines.append({k: v.data if isinstance(v, Table) else v for k, v in values.items()})
    def finish(self):
        with open("tracked.json", "w") as file:
            json.dump(self.lines, file)
def init(**settings):
    if settings["project"] == "refused":
        raise RuntimeError("no api key")
    return Run(settings)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Iterator[Path]:
    """Packages that record what they are told, in the folder of the run."""
    for name in ("wandb", "trackio"):
        (tmp_path / f"{name}.py").write_text(FAKE)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("wandb", "trackio"):
        sys.modules.pop(name, None)


@pytest.mark.model
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_gets_every_figure_of_a_run(fake, name):
    tiny_run(fake, trackers=(name,), project="letters")
    settings, *lines = json.loads((fake / "tracked.json").read_text())
    assert (settings["project"], settings["name"], settings["resume"]) == ("letters", "run", "allow")
    assert settings["config"]["optim.steps"] == 1
    sent = [line for line in lines if "metric" not in line and "evaluation/completions" not in line]
    wanted = [
        {f"{record['kind']}/{key}": value for key, value in record.items() if key != "kind" and value is not None}
        for record in metrics(fake / "run")
    ]
    assert sent == wanted
    tables = [line for line in lines if "evaluation/completions" in line]
    assert [line["evaluation/step"] for line in tables] == [0, 1]
    assert all(len(line["evaluation/completions"]) == 2 for line in tables)


def test_a_tracker_that_is_missing_is_an_error_that_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("phloem.train.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"run\.trackers names wandb, which is not installed: `pip install phloem\["):
        require_trackers(TrainConfig(run=RunConfig(trackers=("wandb",))))
    require_trackers(TrainConfig())


def test_a_tracker_that_refuses_is_an_error_that_names_it(fake):
    config = TrainConfig(run=RunConfig(trackers=("trackio", "wandb"), project="refused"))
    with pytest.raises(ConfigError, match=r"run\.trackers: trackio could not be started \(no api key\)"):
        Trackers(config, fake)


def test_no_tracker_is_imported_unless_asked_for():
    code = "import sys, phloem.train.loop; print([n for n in ('wandb', 'trackio', 'tensorboard') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.model
def test_completions_of_every_evaluation_can_be_read(tmp_path):
    tiny_run(tmp_path)
    pages = sorted((tmp_path / "run" / "completions").iterdir())
    assert [page.name for page in pages] == ["000000.md", "000001.md"]
    text = pages[1].read_text("utf-8")
    assert text.startswith("# held-out after, step 1\n\n## 1: ")
    assert text.count("\n## ") == 2
    assert "    <|start|>user\n    0?<|eot|>" in text


def test_a_page_shows_texts_as_they_are():
    page = as_markdown("t", [("a\n```", "</think>|x|", None, "fault")])
    assert page == "# t\n\n## 1: fault, not scored\n\nPrompt\n\n    a\n    ```\n\nCompletion\n\n    </think>|x|\n"


# ------------------------------------------------------------------- the libraries themselves, off the network


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed (phloem[trackers])")


@needs("tensorboard")
@pytest.mark.model
def test_tensorboard_reads_the_run_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tiny_run(tmp_path, trackers=("tensorboard",))
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    (step,) = metrics(tmp_path / "run", "train")
    (reward,) = events.Scalars("train/reward")
    assert (reward.step, reward.value) == (1, pytest.approx(step["reward"]))
    assert [event.step for event in events.Scalars("evaluation/reward")] == [0, 1]
    assert "evaluation/completions/text_summary" in events.Tags()["tensors"]


@needs("trackio")
@pytest.mark.model
def test_trackio_keeps_the_run_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    tiny_run(tmp_path, trackers=("trackio",), project="letters")
    assert [path for path in (tmp_path / "trackio").rglob("letters*") if path.stat().st_size]


@needs("wandb")
@pytest.mark.model
def test_wandb_runs_offline(tmp_path):
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    code = "import sys; from pathlib import Path; from tiny_run import tiny_run; "
    code += "tiny_run(Path(sys.argv[1]), trackers=('wandb',))"
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
