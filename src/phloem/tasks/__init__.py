"""Tasks: prompts, gold answers and rewards, by name.

Importing this loads neither torch nor any data library; a task loads what it needs when it is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from phloem.config import TaskConfig
from phloem.kinds import ConfigError, coerce, takes_text, type_hints
from phloem.rewards.compose import WeightedSum
from phloem.rewards.format import Format
from phloem.settings import nearest
from phloem.tasks import arithmetic, letters
from phloem.tasks.task import Baseline, Example, ExampleTask, GoldReport, Prompt, Setup, Task, TaskError

__all__ = [
    "GENERATED",
    "Baseline",
    "Example",
    "ExampleTask",
    "GoldReport",
    "Setup",
    "Task",
    "TaskError",
    "get",
    "names",
]

GENERATED: dict[str, Callable[..., ExampleTask]] = {
    "sums": arithmetic.sums,
    "products": arithmetic.products,
    "larger": arithmetic.larger,
    "max-of-4": arithmetic.max_of_4,
    "first-letter": letters.first_letter,
    "last-word": letters.last_word,
    "letter-count": letters.letter_count,
}


def names() -> dict[str, str]:
    """Every task's name with a line on it."""
    lines = {name: (make.__doc__ or "").splitlines()[0] for name, make in GENERATED.items()}
    lines["reasoning-gym:GENERATOR"] = "A generator of reasoning-gym with its own scorer, for example chain_sum."
    lines["data"] = "A file (jsonl, json, parquet, csv) or a hub id with your columns and reward."
    return lines


def get(config: TaskConfig, seed: int = 0) -> ExampleTask:
    """The task a configuration names.

    `seed` draws the training examples; the held-out ones do not depend on it where problems are generated.

    Raises ConfigError: unknown task, unknown argument or one of the wrong type. TaskError, RewardError: data or a
    reward that cannot be used.
    """
    args = dict(config.args)
    family, _, generator = config.name.partition(":")
    setup = _setup(config, seed, args, instruct=family != "data")
    if config.name == "data":
        from phloem.tasks.data import DataOptions, build

        task = build(setup, DataOptions(**_checked(DataOptions, args)))
    elif family == "reasoning-gym":
        from phloem.tasks.reasoning_gym import build

        task = build(generator, setup, **args)
    elif config.name in GENERATED:
        make = GENERATED[config.name]
        task = make(setup, **_checked(make, args))
    else:
        raise ConfigError(f"task.name is {config.name!r}; did you mean {nearest(config.name, list(names()))}?")
    if config.system_prompt is not None and any(
        _has_system(example.prompt) for example in (*task.train, *task.held_out)
    ):
        raise ConfigError("the prompts bring system messages and task.system_prompt is set: drop one of the two")
    if config.format_weight:
        task = replace(task, reward=WeightedSum(((task.reward, 1.0), (Format(), config.format_weight))))
    return _opened(task, config.opening) if config.opening else task


def _opened(task: ExampleTask, opening: str) -> ExampleTask:
    """The task for a template that already writes the opening of a completion."""
    train = [
        replace(example, demonstrations=tuple(text.removeprefix(opening) for text in example.demonstrations))
        for example in task.train
    ]
    return replace(task, train=train, opening=opening)


def _has_system(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and prompt[0]["role"] == "system"


def _setup(config: TaskConfig, seed: int, args: dict[str, Any], *, instruct: bool) -> Setup:
    """Takes the instruction's arguments out of `args`. With a system prompt of the user's, the task brings none."""
    hints = type_hints(Setup)
    given = {
        name: coerce(f"task.args.{name}", args.pop(name), hints[name])
        for name in ("instruction", "instruction_role")
        if name in args
    }
    if not instruct:
        given.setdefault("instruction", "")
    if config.system_prompt is not None and given.setdefault("instruction_role", "user") == "system":
        raise ConfigError("task.system_prompt is set, so task.args.instruction_role must be user")
    if config.held_out_size is None:
        return Setup(seed=seed, train_size=config.train_size, held_out_given=False, **given)
    return Setup(seed=seed, train_size=config.train_size, held_out_size=config.held_out_size, **given)


def _checked(make: Callable[..., Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the types `make` declares."""
    known = {name: p for name, p in inspect.signature(make).parameters.items() if name != "setup"}
    hints = inspect.get_annotations(make, eval_str=True) if inspect.isfunction(make) else type_hints(make)
    for name in args:
        if name not in known:
            takes = ", ".join([*known, "instruction", "instruction_role"])
            raise ConfigError(f"task.args.{name} is not an argument of this task; it takes {takes}")
    missing = [name for name, p in known.items() if p.default is p.empty and name not in args]
    if missing:
        raise ConfigError(f"task.args.{missing[0]} is needed by this task and not set")
    return {name: _argument(f"task.args.{name}", value, hints[name]) for name, value in args.items()}


def _argument(name: str, value: Any, kind: Any) -> Any:
    try:
        return coerce(name, value, kind)
    except ConfigError as error:
        if takes_text(kind) and isinstance(value, dict | list):
            raise ConfigError(
                f"{error}. YAML reads `{{` and `: ` as a mapping: put quotes around the text (on the command line "
                "inside those of the shell)"
            ) from error
        raise
