"""Whole evaluations of a small model: the report, going on after a kill, refusing changed settings, comparing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from evaluate.benchmark_rows import digits_model, one_digit_problems, write
from stand_in_engine import StandInEngine

from phloem import EvaluateConfig
from phloem.cli import main
from phloem.config import DrawConfig, PromptConfig, SubjectConfig
from phloem.evaluate import Evaluation, compare, evaluate
from phloem.evaluate.identity import grader_version
from phloem.kinds import ConfigError, PhloemError
from phloem.settings import resolve, to_yaml

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    digits_model(folder / "model")
    digits_model(folder / "other", seed=1)
    write(folder, "aime24.jsonl", one_digit_problems(10))
    write(folder, "amc23.jsonl", one_digit_problems(4))
    return folder


def settings(place: Path, folder: str) -> EvaluateConfig:
    return EvaluateConfig(
        benchmarks=("aime24", "amc23"),
        data=str(place),
        folder=str(place / folder),
        model=SubjectConfig(path=str(place / "model")),
        sample=DrawConfig(n=4, max_tokens=2, temperature=1.0, top_p=0.99, max_rows=6),
    )


@pytest.fixture(scope="module")
def done(place) -> Evaluation:
    return evaluate(settings(place, "whole"))


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("report.json", "report.md", "report.html")}


class Page(HTMLParser):
    """The tags of a page, its text, and every attribute that could load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data):
        self.text += data


def test_a_report_says_what_its_figures_hold_for(done):
    """Reports of one model on AIME24 differ by 8 to 11 points where settings are unknown: here they are all known."""
    report = done.report
    assert report["sampling"] == {"samples": 4, "temperature": 1.0, "top_p": 0.99, "top_k": 0} | {
        "engine": "hf",
        "cap": 2,
        "seed": 0,
    }
    assert report["graders"] == {"math": grader_version("math")}
    assert report["packages"]["torch"]
    found = report["benchmarks"]["aime24"]
    wording = "{problem}\n\nReason step by step. Write the final answer inside \\boxed{}."
    assert found["prompt"] == f"<|start|>user\n{wording}<|eot|>\n<|start|>assistant\n"
    assert set(found["mean"]) == {"value", "standard_error", "low", "high", "problems"}
    assert 0 < found["mean"]["value"] < 1
    assert found["mean"]["standard_error"] > 0
    assert 0 < found["clipped_share"] <= 1
    assert sum(found["verdicts"].values()) == 40
    assert [p["id"] for p in found["by_problem"]] == [str(n) for n in range(10)]
    page = Page((done.folder / "report.html").read_text("utf-8"))
    markdown = (done.folder / "report.md").read_text("utf-8")
    shown = [f"{found['mean'][name]:.3f}" for name in ("value", "standard_error")]
    shown += [f"{100 * found['clipped_share']:.1f} %", found["prompt"].strip(), grader_version("math"), "0.99"]
    for text in (page.text, markdown):
        assert [part for part in shown if part not in text] == []


def test_the_page_needs_no_other_file(done):
    page = Page((done.folder / "report.html").read_text("utf-8"))
    assert page.loads == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "url(" not in (done.folder / "report.html").read_text("utf-8")


def test_reports_hold_no_text_of_a_problem_and_predictions_do(tmp_path, place):
    write(tmp_path, "aime24.jsonl", [{"id": 1, "problem": "123 321 123 321", "answer": "5"}])
    config = replace(settings(place, "x"), folder=str(tmp_path / "run"), data=str(tmp_path), benchmarks=("aime24",))
    run = evaluate(config)
    assert all(b"123 321" not in content for content in files(run.folder).values())
    assert "123 321" in (run.folder / "predictions.jsonl").read_text("utf-8")


def test_figures_are_those_of_the_predictions(done):
    lines = [json.loads(line) for line in (done.folder / "predictions.jsonl").read_text("utf-8").splitlines()]
    own = [line for line in lines if line["benchmark"] == "aime24"]
    means = [sum(s["reward"] for s in line["samples"]) / 4 for line in own]
    assert done.report["benchmarks"]["aime24"]["mean"]["value"] == pytest.approx(sum(means) / len(means))
    assert {line["fingerprint"] for line in lines} == {done.report["fingerprint"]}
    assert all(len(line["samples"]) == 4 and line["prompt_tokens"] > 0 for line in lines)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.55, 0.999])
def test_an_evaluation_cut_anywhere_ends_in_the_same_report(place, done, share):
    """What a kill leaves: some lines, the last one perhaps cut short, and no report."""
    folder = place / f"cut-{share}"
    folder.mkdir()
    for name in ("identity.json", "config.yaml"):
        (folder / name).write_bytes((done.folder / name).read_bytes())
    content = (done.folder / "predictions.jsonl").read_bytes()
    (folder / "predictions.jsonl").write_bytes(content[: int(share * len(content))])
    said: list[str] = []
    evaluate(settings(place, folder.name), said.append)
    assert files(folder) == files(done.folder)
    assert sorted((folder / "predictions.jsonl").read_bytes().splitlines()) == sorted(content.splitlines())
    assert any("there already" in line for line in said) == (share > 0)


def test_a_killed_process_is_gone_on_from(place, done):
    config = settings(place, "killed")
    (place / "killed.yaml").write_text(to_yaml(config), encoding="utf-8")
    command = [sys.executable, "-m", "phloem", "evaluate", "--config", str(place / "killed.yaml")]
    path = place / "killed" / "predictions.jsonl"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (path.exists() and path.stat().st_size):
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (place / "killed" / "report.json").exists()
    evaluate(config)
    assert files(place / "killed") == files(done.folder)


def test_changed_settings_are_refused_by_name(place, done):
    config = settings(place, "whole")
    changed = {
        "sample.temperature": replace(config, sample=replace(config.sample, temperature=0.5)),
        "sample.max_tokens": replace(config, sample=replace(config.sample, max_tokens=4)),
        "seed": replace(config, seed=1),
        "benchmarks": replace(config, benchmarks=("aime24",)),
        "aime24.problems": replace(config, limit=8),
        "aime24.template": replace(config, prompt=PromptConfig(template="{problem}")),
        "model.fingerprint": replace(config, model=SubjectConfig(path=str(place / "other"))),
    }
    before = files(done.folder)
    for name, other in changed.items():
        with pytest.raises(ConfigError, match=rf"other settings:.* ?{name} \("):
            evaluate(other)
    assert files(done.folder) == before
    evaluate(replace(config, sample=replace(config.sample, max_rows=2)))  # moves rounding only
    assert files(done.folder) == before


def test_greedy_samples_do_not_depend_on_the_seed(place):
    config = replace(settings(place, "greedy"), benchmarks=("amc23",), sample=DrawConfig(max_tokens=3))
    first, second = evaluate(config), evaluate(replace(config, seed=5, folder=str(place / "greedy-5")))
    texts = [[line["samples"] for line in read(run)] for run in (first, second)]
    assert texts[0] == texts[1]
    assert compare(first.folder, second.folder).differences[0].equal == 4


def test_another_engine_is_evaluated_and_not_compared(place, done, monkeypatch):
    """vLLM's own part is a stand-in here; what is asked of it is tested beside the sampler."""
    monkeypatch.setattr("phloem.sample.vllm.LocalEngine", StandInEngine)
    monkeypatch.setattr("phloem.sample.choose.find_spec", lambda name: name)
    monkeypatch.setattr(StandInEngine, "context", 512)
    config = settings(place, "engine")
    run = evaluate(replace(config, sample=replace(config.sample, engine="vllm", top_p=1.0)))
    assert run.report["sampling"]["engine"] == "vllm"
    assert run.report["benchmarks"]["aime24"]["mean"]["value"] > 0
    with pytest.raises(ConfigError, match=r"sample\.engine \('hf', then 'vllm'\)"):
        compare(done.folder, run.folder)


def read(run: Evaluation) -> list[dict]:
    return [json.loads(line) for line in (run.folder / "predictions.jsonl").read_text("utf-8").splitlines()]


def test_two_models_are_compared_by_problem(place, done, capsys):
    config = settings(place, "other-run")
    other = evaluate(replace(config, model=SubjectConfig(path=str(place / "other")), seed=3))
    found = compare(done.folder, other.folder)
    for difference in found.differences:
        first, second = done.held_out[difference.benchmark], other.held_out[difference.benchmark]
        assert difference.gain.mean == pytest.approx((second.means_B - first.means_B).mean())
        assert difference.gain.low <= difference.gain.mean <= difference.gain.high
        assert difference.better + difference.worse + difference.equal == len(first.ids)
    assert main(["compare", str(done.folder), str(other.folder), "--json", str(place / "c.json")]) == 0
    assert str(found.differences[0].gain) in capsys.readouterr().out
    assert json.loads((place / "c.json").read_text())["differences"][0]["benchmark"] == "aime24"


def test_evaluations_that_cannot_be_compared_say_why(place, done, capsys):
    config = settings(place, "short")
    other = evaluate(replace(config, sample=replace(config.sample, max_tokens=3), benchmarks=("amc23",)))
    with pytest.raises(ConfigError, match=r"differ in sample\.max_tokens \(2, then 3\); benchmarks .*aime24\.problems"):
        compare(done.folder, other.folder)
    (other.folder / "report.json").unlink()
    with pytest.raises(ConfigError, match="is not finished"):
        compare(other.folder, other.folder)
    assert main(["compare", str(place), str(done.folder)]) == 2
    assert "is not the folder of an evaluation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sample.n", "4"], "sample.n is 4 and sample.temperature 0"),
        (["--sample.top_p", "0.9"], "sample.temperature is 0, where they do nothing"),
        (["--benchmarks", "aime24,math-500"], "did you mean math500?"),
        (["--benchmarks", "aime24,aime24"], "names aime24 twice"),
        (["--benchmark", "aime24"], "benchmark is not a setting; did you mean benchmarks?"),
        (["--benchmarks", "gsm8k"], "has no file of gsm8k"),
        (["--prompt.template", "no place"], "it has no {problem}"),
        (["--folder", "/proc/nowhere"], "folder /proc/nowhere cannot be written"),
        (["--sample.max_tokens", "4096"], "Lower sample.max_tokens to "),
        (["--prompt.template", "{problem}" * 4000], "Take a model of a longer context"),
        (["--limit", "0"], "limit is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_honoured_is_one_line_and_status_2(place, tmp_path, capsys, words, message):
    given = ["--data", str(place), "--model.path", str(place / "model"), "--benchmarks", "aime24", "--limit", "2"]
    given += ["--folder", str(tmp_path / "run")]
    status = main(["evaluate", *given, *words])
    err = capsys.readouterr().err
    assert (status, err.count("\n")) == (2, 1), err
    assert message in err


def test_a_damaged_line_is_named(place, done, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "identity.json").write_bytes((done.folder / "identity.json").read_bytes())
    (folder / "predictions.jsonl").write_text('{"fingerprint": "x"}\n', encoding="utf-8")
    with pytest.raises(PhloemError, match=r"predictions\.jsonl line 1 is not a prediction"):
        evaluate(replace(settings(place, "x"), folder=str(folder)))


def test_predictions_of_another_evaluation_are_not_taken_for_its_own(place, tmp_path):
    config = replace(settings(place, "x"), benchmarks=("amc23",), folder=str(tmp_path / "run"))
    path = evaluate(config).folder / "predictions.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    record = json.loads(lines[1])
    fewer, other = {**record, "samples": record["samples"][:2]}, {**record, "fingerprint": "0" * 16}
    for changed in (fewer, other):
        path.write_text("".join([lines[0], json.dumps(changed) + "\n", *lines[2:]]), encoding="utf-8")
        with pytest.raises(PhloemError, match=r"predictions\.jsonl line 2, of amc23 1, is not this evaluation's"):
            evaluate(config)
    path.write_text("".join([lines[0], *lines[2:]]), encoding="utf-8")
    with pytest.raises(ConfigError, match="is not finished"):
        compare(tmp_path / "run", tmp_path / "run")
    evaluate(config)
    assert compare(tmp_path / "run", tmp_path / "run").differences[0].equal == 4
    (tmp_path / "run" / "identity.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"identity\.json does not say what was evaluated"):
        evaluate(config)


def test_a_folder_of_something_else_is_left_as_it_was(place, tmp_path):
    """The config.yaml of a run, for one, is what the run goes on by."""
    (tmp_path / "config.yaml").write_text("a run's")
    with pytest.raises(ConfigError, match=r"holds config\.yaml, which an evaluation writes"):
        evaluate(replace(settings(place, "x"), folder=str(tmp_path)))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"config.yaml": "a run's"}


def test_the_last_lines_say_what_is_not_known(place, tmp_path, capsys):
    write(tmp_path, "amc23.jsonl", [{"problem": "1?", "answer": {"a": 1}}])
    write(tmp_path, "aime24.jsonl", one_digit_problems(1))
    given = ["--data", str(tmp_path), "--model.path", str(place / "model"), "--sample.max_tokens", "2"]
    assert main(["evaluate", *given, "--benchmarks", "aime24,amc23", "--folder", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "AMC 2023       no sample was scored" in said
    assert "nan" not in said


def test_settings_are_read_from_files_and_arguments(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text("benchmarks: [aime24]\nsample: {n: 8, temperature: 0.6}\n", encoding="utf-8")
    config = resolve([path], [("benchmarks", "math500,amc23"), ("prompt.chat_args.x", "1")], EvaluateConfig)
    assert (config.benchmarks, config.sample.n, config.prompt.chat_args) == (("math500", "amc23"), 8, {"x": 1})
    path.write_text(to_yaml(config), encoding="utf-8")
    assert resolve([path], root=EvaluateConfig) == config
