"""From the rows of a data set to examples: columns, templates, filters, and the errors that name what is wrong."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import Any, Literal

from phloem.kinds import a_few
from phloem.tasks.rows import Row, read_rows, require_text
from phloem.tasks.task import THOUGHTLESS, Example, Prompt, Setup, TaskError

__all__ = ["SHOWN", "DataOptions", "read_examples"]

ROLES = {"system", "developer", "user", "assistant", "tool"}
"""Roles that need no word."""
SHOWN = 20
"""Rows that a message names."""


@dataclass(frozen=True)
class DataOptions:
    """Arguments of the task `data`."""

    path: str
    """A jsonl, json, parquet or csv file, or a hub id."""
    reward: str
    """A reward's name, or `file.py:function` (see `phloem.rewards`)."""
    reward_args: dict[str, Any] = field(default_factory=dict)
    prompt: str = "prompt"
    """Column of the prompts: texts, or lists of messages {"role", "content"} that end with the user's."""
    answer: str = "answer"
    answer_after: str | None = None
    """The answer is what follows the last of these marks in its column (GSM8K: `####`)."""
    answer_columns: dict[str, str] = field(default_factory=dict)
    """An answer put together from several columns, {key: column}, for rewards that take a mapping (code). `answer` is
    then not read."""
    demonstrations: str | None = None
    """Column of completions in the wanted format: a text or a list of texts."""
    reference: str | None = None
    """Column of solutions for `check()` to score where the answer is none itself (code: the answer holds tests)."""
    template: str | None = None
    """Written around each prompt: `{prompt}` and any `{column}` are filled in."""
    gold_template: str = THOUGHTLESS
    subset: str | None = None
    """Of a hub data set."""
    split: str = "train"
    """Of a hub data set."""
    held_out_path: str | None = None
    """A file or hub id of held-out rows. Without it and `held_out_split`, they are drawn from `path`."""
    held_out_split: str | None = None
    held_out_fraction: float | None = None
    """Hold out this share of the rows of `path`, instead of `task.held_out_size` of them."""
    split_seed: int = 0
    """Which rows are held out and in what order the others are trained on; the run's seed does not move them."""
    max_prompt_characters: int | None = None
    """Longer rows are left out and counted."""
    max_answer_characters: int | None = None
    overlap: Literal["drop", "refuse"] = "drop"
    """Training rows whose prompt is also held out: left out and counted, or an error."""
    unusable: Literal["refuse", "drop"] = "refuse"
    """Rows without a prompt or an answer: an error that names them, or left out and counted."""


def read_examples(path: str, split: str, setup: Setup, options: DataOptions, notes: list[str]) -> list[Example]:
    """The usable rows of one file or hub data set, in order; adds to `notes` what was left out.

    Raises TaskError: see `data.build`.
    """
    rows = read_rows(path, subset=options.subset, split=split)
    if not rows:
        raise TaskError(f"{path} has no rows")
    _require_columns(path, rows, options)
    _report_unusable(path, rows, options, notes)
    examples: list[Example] = []
    roles: Counter[str] = Counter()
    too_long = 0
    for number, row in enumerate(rows, start=1):
        if _lacks(row, options):
            continue
        place = f"{path} row {number}"
        prompt, answer = _prompt(place, row, setup, options), _answer(row, options)
        demonstrations = _demonstrations(place, row, options)
        require_text(place, prompt, answer, *demonstrations)
        if _is_long(prompt, options.max_prompt_characters) or _is_long(str(answer), options.max_answer_characters):
            too_long += 1
            continue
        examples.append(Example(f"{Path(path).stem}:{number}", prompt, answer, row, demonstrations))
        roles.update({message["role"] for message in prompt} if not isinstance(prompt, str) else ())
    for role in roles.keys() - ROLES:
        notes.append(
            f"{path}: {roles[role]} of {len(rows)} rows have messages of the role {role!r}, which few chat templates "
            f"know; usual are {', '.join(sorted(ROLES))}"
        )
    if too_long:
        notes.append(f"{path}: {too_long} of {len(rows)} rows are longer than the limits in task.args; left out")
    if not examples:
        raise TaskError(f"{path} has {len(rows)} rows, none of them usable. {' '.join(notes)}")
    return examples


def _require_columns(path: str, rows: Sequence[Row], options: DataOptions) -> None:
    found: dict[str, None] = {column: None for row in rows for column in row}
    wanted = {name: getattr(options, name) for name in ("prompt", "answer", "demonstrations", "reference")}
    if options.answer_columns:
        wanted.pop("answer")
        wanted |= {f"answer_columns.{key}": column for key, column in options.answer_columns.items()}
    for argument, column in wanted.items():
        if column is not None and column not in found:
            raise TaskError(
                f"{path} has no column {column!r}; it has {', '.join(found)}. Set task.args.{argument} to one of them"
            )
    for column in _placeholders(options.template):
        if column != "prompt" and column not in found:
            raise TaskError(f"task.args.template asks for {{{column}}}; {path} has {', '.join(found)}")


def _placeholders(template: str | None) -> list[str]:
    if template is None:
        return []
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise TaskError(f"task.args.template {template!r}: {error}; write {{{{ and }}}} for braces") from None
    if "prompt" not in names:
        raise TaskError(f"task.args.template {template!r} has no {{prompt}}")
    return names


def _answer(row: Row, options: DataOptions) -> Any:
    if not options.answer_columns:
        value = row.get(options.answer)
        if options.answer_after is None or not isinstance(value, str):
            return value
        return value.rpartition(options.answer_after)[2].strip() if options.answer_after in value else None
    parts = {key: row.get(column) for key, column in options.answer_columns.items()}
    return {key: value for key, value in parts.items() if value is not None}


def _lacks(row: Row, options: DataOptions) -> str:
    """What a row lacks to be used: "prompt", "answer", or nothing."""
    for argument, value in (("prompt", row.get(options.prompt)), ("answer", _answer(row, options))):
        if _is_empty(value):
            return argument
    return ""


def _is_empty(value: Any) -> bool:
    """Nothing, blanks, NaN (which tables put where there is nothing), or a conversation in which the user is silent."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Sequence) and value and isinstance(value[-1], Mapping):
        last = value[-1].get("content")
        return value[-1].get("role") == "user" and isinstance(last, str) and not last.strip()
    return value is None or value in ([], {}) or (isinstance(value, float) and isnan(value))


def _report_unusable(path: str, rows: Sequence[Row], options: DataOptions, notes: list[str]) -> None:
    for argument in ("prompt", "answer"):
        numbers = [number for number, row in enumerate(rows, start=1) if _lacks(row, options) == argument]
        if numbers:
            said = f"{len(numbers)} of {len(rows)} rows have an empty {argument}: rows {a_few(numbers, SHOWN)}"
            if options.unusable == "refuse":
                raise TaskError(f"{path}: {said}. Remove them, or set task.args.unusable to drop")
            notes.append(f"{path}: {said}; left out")


def _is_long(text: Prompt, limit: int | None) -> bool:
    if limit is None:
        return False
    return (len(text) if isinstance(text, str) else sum(len(message["content"]) for message in text)) > limit


def _prompt(place: str, row: Row, setup: Setup, options: DataOptions) -> Prompt:
    value = row[options.prompt]
    if isinstance(value, str):
        return setup.prompt(_filled(place, value, row, options.template))
    if not isinstance(value, Sequence) or not all(isinstance(message, Mapping) for message in value):
        raise TaskError(f"{place}: a prompt is a text or a list of messages, not {type(value).__name__}")
    messages = [{"role": message.get("role"), "content": message.get("content")} for message in value]
    for message in messages:
        if not isinstance(message["role"], str) or not isinstance(message["content"], str):
            raise TaskError(f"{place}: a message needs a text 'role' and a text 'content', got {message}")
    if messages[-1]["role"] != "user":
        raise TaskError(f"{place}: the last message is the {messages[-1]['role']}'s; a prompt ends with the user's")
    if setup.instruction:
        raise TaskError(f"{place}: the prompt is a conversation; put task.args.instruction into it, and unset it")
    messages[-1]["content"] = _filled(place, messages[-1]["content"], row, options.template)
    return tuple(messages)


def _filled(place: str, text: str, row: Row, template: str | None) -> str:
    if template is None:
        return text
    try:
        return template.format(**{**row, "prompt": text})
    except (ValueError, TypeError) as error:
        raise TaskError(f"task.args.template {template!r} cannot be filled with {place}: {error}") from None


def _demonstrations(place: str, row: Row, options: DataOptions) -> tuple[str, ...]:
    if options.demonstrations is None or row.get(options.demonstrations) is None:
        return ()
    value = row[options.demonstrations]
    texts = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(text, str) and text for text in texts):
        raise TaskError(f"{place}: demonstrations are texts, got {value!r}")
    return texts
