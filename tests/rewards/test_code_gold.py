"""The reference solutions of HumanEval and MBPP pass their own tests, and not each other's.

The data is not part of the project: set PHLOEM_TEST_DATA to a folder with humaneval.jsonl and mbpp.jsonl, whose rows
hold the fields of the original files.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from phloem.rewards.code import verify_many
from phloem.rewards.verdict import Status

needs_data = pytest.mark.skipif(
    "PHLOEM_TEST_DATA" not in os.environ, reason="PHLOEM_TEST_DATA names no folder with humaneval.jsonl and mbpp.jsonl"
)


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in Path(os.environ["PHLOEM_TEST_DATA"], name).read_text().splitlines()]


def humaneval() -> tuple[list[str], list[dict]]:
    rows = read("humaneval.jsonl")
    answers = [{"check": row["test"], "entry_point": row["entry_point"], "prompt": row["prompt"]} for row in rows]
    return [row["canonical_solution"] for row in rows], answers


def mbpp() -> tuple[list[str], list[dict]]:
    rows = read("mbpp.jsonl")
    return [row["answer"] for row in rows], [
        {"tests": row["test_list"], "setup": row["test_setup_code"]} for row in rows
    ]


@needs_data
@pytest.mark.parametrize(("load", "number"), [(humaneval, 164), (mbpp, 974)])
def test_reference_solutions_pass(load, number):
    completions, answers = load()
    verdicts = verify_many(completions=completions, answers=answers)
    assert len(verdicts) == number
    assert [(i, verdict.detail) for i, verdict in enumerate(verdicts) if verdict.status is not Status.RIGHT] == []


@needs_data
def test_another_problems_solution_does_not_pass():
    completions, answers = humaneval()
    rotated = completions[1:] + completions[:1]
    verdicts = verify_many(completions=rotated[:60], answers=answers[:60])
    assert [i for i, verdict in enumerate(verdicts) if verdict.reward != 0.0] == []
