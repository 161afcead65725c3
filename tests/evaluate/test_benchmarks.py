"""Benchmarks: from the columns of the hub or of a file to worded prompts and answers that the graders take."""

from __future__ import annotations

import os
from dataclasses import replace

import datasets
import pytest
from evaluate.benchmark_rows import HUB_ROWS, write

from phloem.evaluate.benchmarks import BENCHMARKS, load, worded
from phloem.kinds import ConfigError
from phloem.rewards import Status, get, score_all
from phloem.tasks.task import TaskError

RIGHT = {
    "aime24": "\\boxed{4}",
    "math500": "It is $0.5$.\n\nThe answer is \\boxed{1/2}.",
    "amc23": "\\boxed{2.0}",
    "minerva": "\\boxed{10^3}",
    "olympiadbench": "\\boxed{-1, 1}",
    "gsm8k": "So there are \\boxed{4}.",
    "humaneval": "```python\ndef twice(x):\n    return x + x\n```",
    "mbpp": "Sure.\n```python\ndef twice(x):\n    return x + x\n```",
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_hub_rows_become_problems_whose_grader_tells_right_from_wrong(name, monkeypatch):
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **how: asked.append((args, how)) or HUB_ROWS[name])
    problems = load(name, None)
    benchmark = problems.benchmark
    assert asked == [((benchmark.hub, benchmark.subset), {"split": benchmark.split})]
    assert problems.source.startswith(benchmark.hub)
    (example,) = problems.examples
    row = HUB_ROWS[name][0]
    own = row.get("question") or (row["prompt"] if name == "humaneval" else row.get("text") or row["problem"])
    assert own.rstrip() in example.prompt
    assert all(test in example.prompt for test in row.get("test_list", ()))
    verdicts = score_all(get(benchmark.grader), [RIGHT[name], "\\boxed{17}"], [example.answer] * 2, [example.row] * 2)
    assert [v.status for v in verdicts] == [Status.RIGHT, Status.WRONG]


def test_a_file_is_found_by_its_stem_and_cut_to_its_part(tmp_path):
    rows = [{**HUB_ROWS["mbpp"][0], "task_id": n, "split": "test" if n % 2 else "train"} for n in range(6)]
    write(tmp_path, "mbpp.jsonl", rows)
    assert [e.id for e in load("mbpp", str(tmp_path)).examples] == ["1", "3", "5"]
    write(
        tmp_path, "gsm8k_test.jsonl", [{"problem": "Two and two?", "answer": "4"}, {"problem": "One?", "answer": "1"}]
    )
    problems = load("gsm8k", str(tmp_path), limit=1)
    assert (problems.source, problems.available, [e.id for e in problems.examples]) == ("gsm8k_test.jsonl", 2, ["1"])


def test_wordings_are_filled_once():
    """A problem that talks of {tests}, or of LaTeX braces, stays what it is."""
    row = {"problem": "Is {tests} a set? \\frac{1}{2}", "test_list": ["assert f()"]}
    assert worded(BENCHMARKS["mbpp"], "{problem} | {tests}", row) == "Is {tests} a set? \\frac{1}{2} | assert f()"
    assert "\\boxed{}" in worded(BENCHMARKS["aime24"], None, row)


def test_the_digest_is_of_problems_and_answers_and_not_of_wordings(tmp_path):
    rows = [{"id": n, "problem": f"{n}?", "answer": "1"} for n in range(3)]
    write(tmp_path, "aime24.jsonl", rows)
    first = load("aime24", str(tmp_path))
    assert load("aime24", str(tmp_path), template="Q: {problem}").digest == first.digest
    assert load("aime24", str(tmp_path), limit=2).digest != first.digest
    changed = replace(first, examples=(replace(first.examples[0], answer="2"), *first.examples[1:]))
    assert changed.digest != first.digest


@pytest.mark.parametrize(
    ("file", "rows", "words"),
    [
        (
            "aime24.jsonl",
            [{"problem": "?", "answer": "1", "id": 3}, {"problem": "!", "answer": "1", "id": 3}],
            "3 twice",
        ),
        (
            "aime24.jsonl",
            [{"text": "?", "answer": "1"}],
            "looked for problem, question; it has text, answer",
        ),
        ("aime24.jsonl", [{"problem": "?", "gold": "1"}], "no column 'answer'"),
        ("aime24.jsonl", [{"problem": " ", "answer": "1"}], "row 1 has no problem or no answer"),
        ("aime24.jsonl", [{"problem": "?", "answer": None}], "row 1 has no problem or no answer"),
        ("aime24.jsonl", [{"problem": "a\ud800", "answer": "1"}], "row 1 holds text that is not Unicode"),
        ("aime24.jsonl", [], "has no rows"),
        ("mbpp.jsonl", [{**HUB_ROWS["mbpp"][0], "split": "train"}], "no rows of the test part"),
    ],
)
def test_data_that_cannot_be_used_are_refused_by_name(tmp_path, file, rows, words):
    write(tmp_path, file, rows)
    with pytest.raises(TaskError, match=words):
        load(file.removesuffix(".jsonl"), str(tmp_path))


def test_a_hub_that_cannot_be_reached_says_what_else_to_do(monkeypatch):
    def unreachable(*args, **how):
        raise OSError("no network")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(TaskError, match=r"^MATH-500: .*; or set data to a folder with math500\.jsonl$"):
        load("math500", None)


def test_unknown_names_and_missing_files_say_what_is_there(tmp_path):
    with pytest.raises(ConfigError, match="did you mean math500"):
        load("math-500", str(tmp_path))
    with pytest.raises(ConfigError, match=r"has no file of aime24; looked for aime24\.jsonl"):
        load("aime24", str(tmp_path))


def test_the_published_files_are_complete():
    if not (folder := os.environ.get("PHLOEM_TEST_DATA")):
        pytest.skip("set PHLOEM_TEST_DATA to a folder with aime24.jsonl, math500.jsonl, ..., mbpp.jsonl")
    for name, benchmark in BENCHMARKS.items():
        problems = load(name, folder)
        assert len(problems.examples) == benchmark.size, name
