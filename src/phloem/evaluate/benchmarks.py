"""The benchmarks by name: where their problems are, how they are put to a model, how completions are graded.

The texts belong to their publishers and are read from the hub or from a folder of files; none is part of the package.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phloem.kinds import ConfigError
from phloem.settings import nearest
from phloem.tasks.rows import READERS, Row, read_rows, require_text
from phloem.tasks.task import Example, TaskError

__all__ = ["BENCHMARKS", "Benchmark", "Problems", "find", "load", "worded"]

BOXED = "{problem}\n\nReason step by step. Write the final answer inside \\boxed{}."
CODE = (
    "{problem}\n\nWrite it in Python, in one fenced block that defines everything it needs. It must pass these tests:"
    "\n\n```python\n{tests}\n```"
)
FUNCTION = (
    "Complete this Python function. Answer with the whole function, imports included, in one fenced block.\n\n"
    "```python\n{problem}\n```"
)
_PLACE = re.compile(r"\{(problem|tests)\}")


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Attributes:
        name, title: as settings and as readers know it.
        size: problems of the whole benchmark.
        hub, subset, split: the hub data set and its part.
        stems: names that a local file may have, without their ending.
        template: the wording; `{problem}` and `{tests}` are filled in.
        grader: "math" (`phloem.rewards.math`) or "code" (`phloem.rewards.code`).
        answer: from a row to what the grader takes.
        problem, id: columns that may hold them; the first that a file has counts. Rows without an id are numbered.
    """

    name: str
    title: str
    size: int
    hub: str
    split: str
    stems: tuple[str, ...]
    answer: Callable[[Row], Any]
    grader: str = "math"
    template: str = BOXED
    subset: str | None = None
    problem: tuple[str, ...] = ("problem", "question")
    id: tuple[str, ...] = ("id", "unique_id", "task_id", "idx")


@dataclass(frozen=True)
class Problems:
    """The problems of one benchmark that an evaluation uses: prompts worded, answers as the grader takes them."""

    benchmark: Benchmark
    examples: tuple[Example, ...]
    source: str
    """The hub id with its part, or the name of the file."""
    available: int
    """Problems there before `limit`."""

    @property
    def digest(self) -> str:
        """Of ids, problems and gold answers: equal digests, equal problems."""
        content = [[e.id, e.row["problem"], e.answer] for e in self.examples]
        text = json.dumps(content, sort_keys=True, ensure_ascii=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _plain_answer(row: Row) -> str:
    return str(row["answer"])


def _after_hashes(row: Row) -> str:
    """GSM8K's solutions end in `#### 18`."""
    return str(row["answer"]).rpartition("####")[2].strip()


def _answer_or_list(row: Row) -> str:
    """OlympiadBench lists its answers; several are one answer with several parts."""
    value = row["answer"] if "answer" in row else row["final_answer"]
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _function_tests(row: Row) -> dict[str, str]:
    return {"check": row["test"], "entry_point": row["entry_point"], "prompt": row["prompt"]}


def _assertions(row: Row) -> dict[str, Any]:
    return {"tests": list(row["test_list"]), "setup": row.get("test_setup_code") or ""}


BENCHMARKS: dict[str, Benchmark] = {
    b.name: b
    for b in (
        Benchmark(
            name="aime24",
            title="AIME 2024",
            size=30,
            hub="HuggingFaceH4/aime_2024",
            split="train",
            stems=("aime24", "aime_2024"),
            answer=_plain_answer,
        ),
        Benchmark(
            name="math500",
            title="MATH-500",
            size=500,
            hub="HuggingFaceH4/MATH-500",
            split="test",
            stems=("math500",),
            answer=_plain_answer,
        ),
        Benchmark(
            name="amc23",
            title="AMC 2023",
            size=40,
            hub="math-ai/amc23",
            split="test",
            stems=("amc23",),
            answer=_plain_answer,
        ),
        Benchmark(
            name="minerva",
            title="Minerva",
            size=272,
            hub="math-ai/minervamath",
            split="test",
            stems=("minerva", "minerva_math"),
            answer=_plain_answer,
        ),
        Benchmark(
            name="olympiadbench",
            title="OlympiadBench",
            size=675,
            hub="knoveleng/OlympiadBench",
            split="train",
            stems=("olympiadbench",),
            answer=_answer_or_list,
        ),
        Benchmark(
            name="gsm8k",
            title="GSM8K",
            size=1319,
            hub="openai/gsm8k",
            split="test",
            stems=("gsm8k", "gsm8k_test"),
            answer=_after_hashes,
            subset="main",
        ),
        Benchmark(
            name="humaneval",
            title="HumanEval",
            size=164,
            hub="openai/openai_humaneval",
            split="test",
            stems=("humaneval",),
            answer=_function_tests,
            grader="code",
            template=FUNCTION,
            problem=("prompt",),
            id=("task_id",),
        ),
        Benchmark(
            name="mbpp",
            title="MBPP",
            size=500,
            hub="google-research-datasets/mbpp",
            split="test",
            stems=("mbpp",),
            answer=_assertions,
            grader="code",
            template=CODE,
            subset="full",
            problem=("text", "problem"),
            id=("task_id",),
        ),
    )
}


def find(name: str) -> Benchmark:
    """The benchmark of a name. Raises ConfigError with the nearest name."""
    if name not in BENCHMARKS:
        raise ConfigError(f"benchmarks names {name!r}; did you mean {nearest(name, list(BENCHMARKS))}?")
    return BENCHMARKS[name]


def worded(benchmark: Benchmark, template: str | None, row: Row) -> str:
    """The text that is put to the model, `{problem}` and `{tests}` filled in; `template` replaces the own wording."""
    tests = "\n".join(row.get("test_list") or ())
    filled = {"problem": str(row["problem"]).rstrip(), "tests": tests}
    return _PLACE.sub(lambda place: filled[place[1]], template or benchmark.template)


def load(name: str, data: str | None, limit: int | None = None, template: str | None = None) -> Problems:
    """The problems of a benchmark, from the folder `data` or, if that is None, from the hub.

    Raises ConfigError: an unknown name, a folder without the file. TaskError: a file or data set that cannot be read,
    has no rows, lacks a column, or has an id twice.
    """
    benchmark = find(name)
    path = benchmark.hub if data is None else str(_file(benchmark, data))
    try:
        rows = read_rows(path, subset=benchmark.subset, split=benchmark.split)
    except TaskError as error:
        hint = f"; or set data to a folder with {benchmark.stems[0]}.jsonl" if data is None else ""
        raise TaskError(f"{benchmark.title}: {error}{hint}") from error
    # A file may hold all parts of a data set.
    rows = [row for row in rows if row.get("split", benchmark.split) == benchmark.split]
    if not rows:
        raise TaskError(f"{path} has no rows of the {benchmark.split} part of {benchmark.title}")
    column = _column(path, rows[0], benchmark.problem, "problems")
    examples = [_example(path, number, row, column, benchmark, template) for number, row in enumerate(rows, 1)]
    _require_distinct(path, examples)
    part = "/".join(p for p in (benchmark.subset, benchmark.split) if p)
    source = f"{benchmark.hub} ({part})" if data is None else Path(path).name
    return Problems(benchmark, tuple(examples[:limit]), source, len(examples))


def _file(benchmark: Benchmark, folder: str) -> Path:
    names = [stem + ending for stem in benchmark.stems for ending in READERS]
    for name in names:
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise ConfigError(
        f"data: {folder} has no file of {benchmark.name}; looked for {', '.join(names)}. Leave data unset to read "
        f"{benchmark.hub} from the hub"
    )


def _column(path: str, row: Row, names: Sequence[str], what: str) -> str:
    for name in names:
        if name in row:
            return name
    raise TaskError(f"{path} has no column of {what}: looked for {', '.join(names)}; it has {', '.join(row)}")


def _example(path: str, number: int, row: Row, column: str, benchmark: Benchmark, template: str | None) -> Example:
    """One row as an example; its `row` has the text of the problem under `problem`, whatever the column is called."""
    place = f"{path} row {number}"
    try:
        row = {**row, "problem": row[column]}
        answer = benchmark.answer(row)
    except KeyError as error:
        raise TaskError(f"{place} has no column {error}; it has {', '.join(row)}") from None
    if not isinstance(row["problem"], str) or not row["problem"].strip() or answer in ("", "None"):
        raise TaskError(f"{place} has no problem or no answer")
    require_text(place, row["problem"], answer)
    own = next((str(row[name]) for name in benchmark.id if row.get(name) is not None), str(number))
    return Example(own, worded(benchmark, template, row), answer, row)


def _require_distinct(path: str, examples: Sequence[Example]) -> None:
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise TaskError(f"{path} has the id {example.id} twice; predictions are kept by id")
        seen.add(example.id)
