"""A task from your own data: a file or a hub id, your columns, your reward.

Everything that can be wrong with the data is found here, before a model loads: missing columns, empty prompts, too few
rows, held-out prompts that are also trained on. Rows are counted from 1.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phloem.kinds import ConfigError, a_few
from phloem.rewards.registry import get as get_reward
from phloem.tasks.columns import SHOWN, DataOptions, read_examples
from phloem.tasks.task import Example, ExampleTask, Setup, TaskError, prompt_key

__all__ = ["DataOptions", "build"]


def build(setup: Setup, options: DataOptions) -> ExampleTask:
    """The task of a data set.

    Raises TaskError: no such file, a missing column, empty prompts, too few rows, prompts on both sides of the split.
    RewardError: an unknown reward.
    """
    _check_split(setup, options)
    if "{answer}" not in options.gold_template:
        raise ConfigError(f"task.args.gold_template is {options.gold_template!r}; it has no {{answer}} to put it in")
    reward = get_reward(options.reward, **options.reward_args)
    notes: list[str] = []
    name = Path(options.path).stem
    rows = read_examples(options.path, options.split, setup, options, notes)
    if options.held_out_path or options.held_out_split:
        path = options.held_out_path or options.path
        if Path(path).is_file() and options.held_out_split:
            raise TaskError(f"{path} is a file and has no splits: set task.args.held_out_path, not held_out_split")
        held_out = read_examples(path, options.held_out_split or options.split, setup, options, notes)
        if setup.held_out_given and len(held_out) < setup.held_out_size:
            notes.append(f"{path}: {len(held_out)} held-out rows, fewer than task.held_out_size {setup.held_out_size}")
        held_out = held_out[: setup.held_out_size]
        train = _shuffled(rows, options.split_seed)
    else:
        train, held_out = _split(rows, _held_out_size(len(rows), setup, options, notes), options)
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


def _held_out_size(rows: int, setup: Setup, options: DataOptions, notes: list[str]) -> int:
    """How many rows are held out: as many as asked for, the share asked for, or what is sensible."""
    if options.held_out_fraction is not None:
        return max(1, round(options.held_out_fraction * rows))
    if setup.held_out_given:
        return setup.held_out_size
    size = min(setup.held_out_size, max(1, rows // 10))
    notes.append(f"{options.path}: {size} of {rows} rows are held out; task.held_out_size sets another number")
    return size


def _check_split(setup: Setup, options: DataOptions) -> None:
    """Raises ConfigError: several ways to say what is held out."""
    fraction = options.held_out_fraction
    if fraction is None:
        return
    if not 0 < fraction < 1:
        raise ConfigError(f"task.args.held_out_fraction is {fraction}; it must be between 0 and 1")
    others = {
        "task.args.held_out_path": options.held_out_path,
        "task.args.held_out_split": options.held_out_split,
        "task.held_out_size": setup.held_out_given,
    }
    for name in (name for name, given in others.items() if given):
        raise ConfigError(f"task.args.held_out_fraction and {name} both say what is held out: drop one of the two")


def _shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    return random.Random(seed).sample(examples, len(examples))


def _split(rows: list[Example], held_out_size: int, options: DataOptions) -> tuple[list[Example], list[Example]]:
    """Held-out rows of different prompts, and all others."""
    order = _shuffled(rows, options.split_seed)
    first: dict[Any, int] = {}
    for index, example in enumerate(order):
        first.setdefault(prompt_key(example.prompt), index)
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
    held = {prompt_key(example.prompt) for example in held_out}
    kept = [example for example in train if prompt_key(example.prompt) not in held]
    if len(kept) < len(train):
        shared = [example.id for example in train if prompt_key(example.prompt) in held]
        said = f"{len(shared)} training rows have a prompt that is held out: {a_few(shared, SHOWN)}"
        if options.overlap == "refuse":
            raise TaskError(f"{options.path}: {said}. Remove them, or set task.args.overlap to drop")
        notes.append(f"{options.path}: {said}; left out")
    return kept
