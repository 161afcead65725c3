"""Studies as commands: pieces are kept, time runs out, every quick study runs to its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phloem.cli import main
from phloem.kinds import ConfigError
from phloem.studies.matrix import HEADLINE, PLAN
from phloem.studies.names import NAMES, get
from phloem.studies.page import page, results_in, summary_page
from phloem.studies.study import Bench, OutOfTime, Verdict

DOCS = Path(__file__).parents[2] / "docs" / "studies"


def test_a_piece_is_computed_once_for_the_same_settings(tmp_path):
    bench = Bench(tmp_path, say=lambda line: None)
    calls = []

    def compute():
        calls.append(1)
        return {"x": float("nan"), "n": len(calls)}

    assert bench.piece("p", {"a": 1}, compute) == {"x": None, "n": 1}
    assert bench.piece("p", {"a": 1}, compute) == {"x": None, "n": 1}
    assert bench.piece("p", {"a": 2}, compute) == {"x": None, "n": 2}


def test_no_piece_is_begun_after_the_minutes(tmp_path):
    Bench(tmp_path, say=lambda line: None).piece("old", {}, lambda: 1)
    late = Bench(tmp_path, minutes=0, say=lambda line: None)
    assert late.piece("old", {}, lambda: 2) == 1
    with pytest.raises(OutOfTime, match="goes on from there"):
        late.piece("new", {}, lambda: 2)
    assert late.optional_piece("new", {}, lambda: 2) is None


def test_the_plan_names_every_run_once_and_begins_with_the_four_rules():
    names = [cell.name for cell in PLAN]
    assert len(names) == len(set(names))
    assert PLAN[:12] == HEADLINE
    for seed in range(3):
        assert {c.rule for c in PLAN[4 * seed : 4 * seed + 4]} == {"grpo", "lambda-grpo", "grpo-ma", "lambda-grpo-ma"}


def test_budgets_are_equal_in_planned_tokens():
    tokens = [c.planned_steps() * 2 * c.thoughts * (13 + 9 * c.answers) for c in PLAN if c.steps is None]
    assert max(tokens) < 1.06 * min(tokens)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("studies")


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_a_quick_study_runs_to_its_page(name, work, capsys):
    words = ["study", name, "--quick", "--folder", str(work / "results"), "--work", str(work / "work")]
    assert main(words) == 0, capsys.readouterr().err
    results = json.loads((work / "results" / f"{name}.json").read_text("utf-8"))
    assert results["findings"]
    assert {f["verdict"] for f in results["findings"]} == {Verdict.NOT_TESTED}
    text = (work / "results" / f"{name}.md").read_text("utf-8")
    for figure in results["figures"]:
        assert (work / "results" / figure["file"]).stat().st_size > 1000
        assert f"]({figure['file']})" in text
    assert f"[{name}]({name}.md)" in (work / "results" / "index.md").read_text("utf-8")


@pytest.mark.model
def test_a_bench_that_trains_nothing_says_what_is_missing(tmp_path, capsys):
    words = ["study", "time-per-step", "--quick", "--no-training", "--folder", str(tmp_path), "--work", str(tmp_path)]
    assert main(words) == 0
    assert "phloem study time-per-step" in (tmp_path / "time-per-step.md").read_text("utf-8")
    assert not capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs a name"),
        (["binary-tre"], "binary-tre is not a study; did you mean binary-tree?"),
        (["list", "--quickly"], "phloem study takes no --quickly"),
        (["matrix", "--minutes"], "--minutes has no value"),
        (["matrix", "--minutes", "soon"], "--minutes is 'soon'; it takes a number"),
    ],
)
def test_what_a_study_cannot_honour_is_refused(words, message, capsys):
    assert main(["study", *words]) == 2
    assert message in capsys.readouterr().err


def test_studies_are_listed(capsys):
    assert main(["study", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(NAMES)
    with pytest.raises(ConfigError, match="did you mean structure"):
        get("strukture")


def test_the_pages_are_those_of_the_results():
    found = results_in(DOCS)
    assert found
    for name, results in found.items():
        assert not results["quick"]
        assert (DOCS / f"{name}.md").read_text("utf-8") == page(get(name), results), f"run `phloem study {name}` again"
    assert (DOCS / "index.md").read_text("utf-8") == summary_page(found)
