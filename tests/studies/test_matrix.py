"""The shared runs: made once, read back, tried again after a failure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phloem.kinds import PhloemError
from phloem.studies import matrix
from phloem.studies.matrix import HEADLINE, Cell, readings
from phloem.studies.readings import Reading
from phloem.studies.study import Bench
from phloem.studies.time_per_step import seconds_to

pytestmark = pytest.mark.model
TREE = [cell for cell in HEADLINE if cell.rule == "grpo-ma"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    return Bench(tmp_path_factory.mktemp("matrix"), quick=True, say=lambda line: None)


def test_a_run_is_trained_once_and_read_again(bench: Bench):
    first = readings(bench, TREE)
    assert [r.cell.seed for r in first] == [0, 1]
    written = (first[0].folder / "metrics.jsonl").stat().st_mtime_ns
    again = readings(Bench(bench.work, quick=True, trains=False, say=lambda line: None), TREE)
    assert (again[0].folder / "metrics.jsonl").stat().st_mtime_ns == written
    assert again[0].steps == first[0].steps


def test_tokens_count_a_thought_once_for_all_its_answers(bench: Bench):
    run = readings(bench, TREE)[0]
    segments = [s for _, group in run.groups() for s in group.segments]
    assert run.tokens[-1] == sum(len(s) for s in segments)
    assert run.tokens_at(0) == 0
    assert run.tokens_at(1) == run.tokens[0]
    assert run.seconds_at(2) == pytest.approx(run.series("seconds").sum())


def test_a_run_that_was_killed_or_failed_is_made_again(bench: Bench, monkeypatch):
    cell = Cell("grpo-ma", 4, 4, 7)
    folder = bench.work / "runs" / cell.name
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(matrix, "_train", lambda *_: (_ for _ in ()).throw(PhloemError("no weight changed")))
        assert readings(Bench(bench.work, quick=True, say=said.append), [cell]) == []
    assert "no weight changed" in said[0]
    assert len(readings(bench, [cell])[0].steps) == 2


def test_seconds_to_a_target_lie_on_the_line_between_evaluations():
    steps = [{"seconds": 10.0}, {"seconds": 10.0}]
    evaluations = [{"step": s, "reward": r} for s, r in ((0, 0.5), (1, 0.5), (2, 0.7))]
    run = Reading(Path("."), HEADLINE[0], steps, evaluations)
    assert seconds_to(run, 0.1) == pytest.approx(15.0)
    assert np.isnan(seconds_to(run, 0.3))
    assert run.gain == pytest.approx(0.2)
