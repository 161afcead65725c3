import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from phloem.analysis.plots import draw_curves, read_metrics
from phloem.config import ConfigError, RunConfig, TrainConfig
from phloem.files import replaced_folder
from phloem.kinds import PhloemError
from phloem.train import RunResult
from phloem.train.folder import RunFolder
from phloem.train.report import report
from phloem.train.view import View

STEP = {
    "step": 1,
    "reward": 0.5,
    "zero_spread": 0.25,
    "truncated": 0.0,
    "token_ratio": 5.8,
    "gap": 0.01,
    "grad_norm": 1.5,
    "seconds": 7.0,
}


def test_what_is_not_finite_becomes_null(tmp_path):
    folder = RunFolder.make(TrainConfig(run=RunConfig(folder=str(tmp_path / "run"))))
    folder.metrics({"kind": "train", "a": float("nan"), "b": [float("inf"), 1.0]})
    folder.close()
    line = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert json.loads(line) == {"kind": "train", "a": None, "b": [None, 1.0]}


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        RunFolder.make(TrainConfig(run=RunConfig(folder=str(tmp_path / "file" / "run"))))
    with pytest.raises(ConfigError, match=r"cannot be used .*name another one"):
        RunFolder.make(TrainConfig(run=RunConfig(folder=str(tmp_path / ("x" * 300)))))


@pytest.mark.parametrize("name", ["config.yaml", "model", "curves.png"])
def test_files_of_somebody_else_are_not_written_over(tmp_path, name):
    """A base model in `./model` and `run.folder .` must not end in the trained model taking its place."""
    (tmp_path / name).write_text("theirs")
    (tmp_path / "notes.txt").write_text("theirs")
    with pytest.raises(ConfigError, match=rf"holds {name}, which a run writes"):
        RunFolder.make(TrainConfig(run=RunConfig(folder=str(tmp_path))))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "theirs", "notes.txt": "theirs"}


def test_a_run_that_logged_nothing_leaves_nothing(tmp_path):
    config = TrainConfig(run=RunConfig(folder=str(tmp_path / "new" / "run")))
    RunFolder.make(config).close()
    assert not (tmp_path / "new" / "run").exists()
    folder = RunFolder.make(config)
    folder.metrics({"kind": "train"})
    folder.close()
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "config.yaml",
        "env.json",
        "metrics.jsonl",
        "rollouts.jsonl",
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    folder = RunFolder.make(TrainConfig(run=RunConfig(folder=str(tmp_path / "run"))))
    for name in ("metrics.jsonl", "summary.json"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
        (tmp_path / "run" / name).symlink_to("/dev/full")
    folder._metrics = (tmp_path / "run" / "metrics.jsonl").open("a")
    with pytest.raises(PhloemError, match=r"metrics\.jsonl cannot be written .*No space left.*make room"):
        folder.metrics({"kind": "train"})
    with pytest.raises(PhloemError, match=r"summary\.json cannot be written"):
        folder.write_json("summary.json", {})
    folder.close()


def test_a_folder_takes_its_place_only_when_it_is_whole(tmp_path):
    place = tmp_path / "model"
    with replaced_folder(place) as aside:
        (aside / "weights").write_text("1")

    with pytest.raises(PhloemError, match=r"model cannot be written .*make room"), replaced_folder(place):
        raise OSError(28, "No space left on device")
    assert (place / "weights").read_text() == "1"

    def killed_while_writing() -> None:
        with replaced_folder(place) as aside:
            (aside / "weights").write_text("2")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        killed_while_writing()
    assert (place / "weights").read_text() == "1"
    with replaced_folder(place) as aside:
        (aside / "weights").write_text("3")
    assert (place / "weights").read_text() == "3"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_metrics_cut_short_by_a_kill_can_be_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n{"kind": "tra')
    assert read_metrics(path) == [{"kind": "train", "step": 1}]
    path.write_bytes('{"text": "a\u2028b\u0085c"}\n{"text": "\u00e9'.encode()[:-1])
    assert read_metrics(path) == [{"text": "a\u2028b\u0085c"}]


def test_plain_lines_name_every_figure_and_the_time_left():
    out = io.StringIO()
    view = View("plain", Console(file=out, width=200))
    view.phase("training", 4)
    view.step(1, STEP)
    view.close()
    line = out.getvalue().splitlines()[-1]
    for part in ("step 1/4", "reward 0.500", "zero spread 25%", "token ratio 5.80", "gap 0.0100", "left"):
        assert part in line


def test_the_live_panel_shows_every_figure():
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    view = View("auto", console)
    assert view.mode == "live"
    view.phase("training", 3)
    for step in (1, 2):
        view.step(step, STEP | {"step": step, "gap": None})
    view.phase("held-out", 10)
    view.advance(5)
    view.say("a line that stays")
    view.close()
    text = out.getvalue()
    for part in ("zero spread", "token ratio", "gap", "5/10", "left", "a line that stays", "held-out"):
        assert part in text


def test_nothing_is_shown_in_mode_none():
    out = io.StringIO()
    view = View("none", Console(file=out))
    view.phase("training", 1)
    view.step(1, STEP)
    view.say("nothing")
    view.close()
    assert out.getvalue() == ""


def test_curves_of_a_run_with_gaps_and_of_one_without_steps(tmp_path: Path):
    steps = [STEP | {"kind": "train", "step": n, "gap": None if n % 3 else 0.1} for n in range(1, 30)]
    held_out = [{"kind": "evaluation", "step": 0, "reward": 0.4, "standard_error": 0.02, "constant_baseline": 0.1}]
    for name, records in (("full", [*held_out, *steps]), ("empty", held_out)):
        draw_curves(records, tmp_path / f"{name}.png", name)
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("within", "between", "said"),
    [
        (0.25, None, "within thoughts 0.250, between thoughts unknown"),
        (None, 0.5, "within thoughts unknown, between thoughts 0.500"),
        (None, None, None),
    ],
)
def test_the_report_names_what_is_unknown(tmp_path, within, between, said):
    """One thought that forks in a step gives no variance between thoughts, though there is one within."""
    config = TrainConfig(run=RunConfig(folder=str(tmp_path / "run")))
    folder, out = RunFolder.make(config), io.StringIO()
    variances = {"within_variance": within, "between_variance": between}
    times = dict.fromkeys(("seconds/sample", "seconds/reward", "seconds/update"), 1.0)
    folder.metrics(STEP | variances | times | {"kind": "train", "token_ratio": None})
    report(
        RunResult(folder.path, 1, None, None, None, None, None, None), config, folder, View("plain", Console(file=out))
    )
    folder.close()
    assert "token ratio unknown; seconds per step: sample 1.00" in out.getvalue()
    assert (said or "") in out.getvalue()
    assert ("variance of the reward" in out.getvalue()) == (said is not None)
