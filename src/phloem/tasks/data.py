"""A task from your own data: a file or a hub id, your columns, your reward.

Everything that can be wrong with the data is found here, before a model loads: missing columns, empty prompts, too few
rows, held-out prompts that are also trained on. Rows are counted from 1, as an editor counts lines.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from phloem.rewards.registry import get as get_reward
from phloem.tasks.rows import Row, read_rows
from phloem.tasks.task import THOUGHTLESS, Example, ExampleTask, Prompt, Setup, TaskError

__all__ = ["DataOptions", "build"]


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
    split_seed: int = 0
    """Which rows are held out and in what order the others are trained on; the run's seed does not move them."""
    max_prompt_characters: int | None = None
    """Longer rows are left out and counted."""
    max_answer_characters: int | None = None
    overlap: Literal["drop", "refuse"] = "drop"
    """Training rows whose prompt is also held out: left out and counted, or an error."""
    unusable: Literal["refuse", "drop"] = "refuse"
    """Rows without a prompt or an answer: an error that names them, or left out and counted."""


def build(setup: Setup, options: DataOptions) -> ExampleTask:
    """The task of a data set.

    Raises TaskError: no such file, a missing column, empty prompts, too few rows, prompts on both sides of the split.
    RewardError: an unknown reward.
    """
    reward = get_reward(options.reward, **options.reward_args)
    notes: list[str] = []
    name = Path(options.path).stem
    rows = _examples(options.path, options.split, setup, options, notes)
    if options.held_out_path or options.held_out_split:
        path = options.held_out_path or options.path
        held_out = _examples(path, options.held_out_split or options.split, setup, options, notes)
        if len(held_out) < setup.held_out_size:
            notes.append(f"{path}: {len(held_out)} held-out rows, fewer than task.held_out_size {setup.held_out_size}")
        held_out = held_out[: setup.held_out_size]
        train = _shuffled(rows, options.split_seed)
    else:
        train, held_out = _split(rows, setup.held_out_size, options)
    train = _apart(train, held_out, options, notes)
    if setup.train_size is not None:
        if len(train) < setup.train_size:
            raise TaskError(
                f"{options.path} leaves {len(train)} training rows, fewer than task.train_size {setup.train_size}: "
                "lower task.train_size or task.held_out_size"
            )
        train = train[: setup.train_size]
    if not train:
        raise TaskError(f"{options.path} leaves no training row. {' '.join(notes)}")
    return ExampleTask(name, train, held_out, reward, options.gold_template, options.reference, tuple(notes))


def _shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    return random.Random(seed).sample(examples, len(examples))


def _split(rows: list[Example], held_out_size: int, options: DataOptions) -> tuple[list[Example], list[Example]]:
    """Held-out rows of different prompts, and all others."""
    order = _shuffled(rows, options.split_seed)
    first: dict[Any, int] = {}
    for index, example in enumerate(order):
        first.setdefault(_key(example.prompt), index)
    chosen = sorted(first.values())[:held_out_size]
    if len(chosen) < held_out_size or len(order) <= held_out_size:
        raise TaskError(
            f"{options.path} has {len(rows)} usable rows with {len(first)} different prompts: too few to hold out "
            f"{held_out_size} and train on others. Lower task.held_out_size, or give task.args.held_out_path"
        )
    taken = set(chosen)
    return [e for i, e in enumerate(order) if i not in taken], [order[i] for i in chosen]


def _apart(train: list[Example], held_out: list[Example], options: DataOptions, notes: list[str]) -> list[Example]:
    """The training rows whose prompts are not held out."""
    held = {_key(example.prompt) for example in held_out}
    kept = [example for example in train if _key(example.prompt) not in held]
    if len(kept) < len(train):
        shared = [example.id for example in train if _key(example.prompt) in held]
        said = f"{len(shared)} training rows have a prompt that is held out: {_some(shared)}"
        if options.overlap == "refuse":
            raise TaskError(f"{options.path}: {said}. Remove them, or set task.args.overlap to drop")
        notes.append(f"{options.path}: {said}; left out")
    return kept


def _key(prompt: Prompt) -> Any:
    """Prompts that differ in white space only are the same."""
    if isinstance(prompt, str):
        return " ".join(prompt.split())
    return tuple((message["role"], " ".join(message["content"].split())) for message in prompt)


def _some(items: Sequence[Any], most: int = 20) -> str:
    return ", ".join(map(str, items[:most])) + (f" and {len(items) - most} more" if len(items) > most else "")


def _examples(path: str, split: str, setup: Setup, options: DataOptions, notes: list[str]) -> list[Example]:
    """The usable rows of one source, in order."""
    rows = read_rows(path, subset=options.subset, split=split)
    if not rows:
        raise TaskError(f"{path} has no rows")
    _require_columns(path, rows, options)
    _report_unusable(path, rows, options, notes)
    examples: list[Example] = []
    too_long = 0
    for number, row in enumerate(rows, start=1):
        if _lacks(row, options):
            continue
        prompt = _prompt(f"{path} row {number}", row, setup, options)
        if _is_long(prompt, options.max_prompt_characters) or _is_long(
            str(row[options.answer]), options.max_answer_characters
        ):
            too_long += 1
            continue
        demonstrations = _demonstrations(f"{path} row {number}", row, options)
        identity = f"{Path(path).stem}:{number}"
        examples.append(Example(identity, prompt, row[options.answer], row, demonstrations))
    if too_long:
        notes.append(f"{path}: {too_long} of {len(rows)} rows are longer than the limits in task.args; left out")
    if not examples:
        raise TaskError(f"{path} has {len(rows)} rows, none of them usable. {' '.join(notes)}")
    return examples


def _require_columns(path: str, rows: Sequence[Row], options: DataOptions) -> None:
    found: dict[str, None] = {column: None for row in rows for column in row}
    for argument in ("prompt", "answer", "demonstrations", "reference"):
        column = getattr(options, argument)
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


def _lacks(row: Row, options: DataOptions) -> str:
    """What a row lacks to be used: "prompt", "answer", or nothing."""
    for argument, column in (("prompt", options.prompt), ("answer", options.answer)):
        value = row.get(column)
        if value is None or (isinstance(value, str) and not value.strip()) or value == []:
            return argument
    return ""


def _report_unusable(path: str, rows: Sequence[Row], options: DataOptions, notes: list[str]) -> None:
    for argument in ("prompt", "answer"):
        numbers = [number for number, row in enumerate(rows, start=1) if _lacks(row, options) == argument]
        if numbers:
            said = f"{len(numbers)} of {len(rows)} rows have an empty {argument}: rows {_some(numbers)}"
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
        return setup.prompt(_filled(value, row, options))
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
    messages[-1]["content"] = _filled(messages[-1]["content"], row, options)
    return tuple(messages)


def _filled(text: str, row: Row, options: DataOptions) -> str:
    return text if options.template is None else options.template.format(**{**row, "prompt": text})


def _demonstrations(place: str, row: Row, options: DataOptions) -> tuple[str, ...]:
    if options.demonstrations is None or row.get(options.demonstrations) is None:
        return ()
    value = row[options.demonstrations]
    texts = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(text, str) and text for text in texts):
        raise TaskError(f"{place}: demonstrations are texts, got {value!r}")
    return texts
