"""reasoning-gym's generators as tasks, scored by their own scorers.

Confessed departures from the library:

- Some of its scorers would run what the policy wrote; `gym_reward` says what they get to see.
- A completion without an answer scores 0, where some scorers pay .01.
- Golds that the library gives as None are replaced by the solution it keeps beside the problem. `rush_hour` and
  `boxnet` keep none, so their rewards cannot be checked and they are refused, as is `composite`.
- Problems whose gold is the question handed back (an `Integral(...)` that was never solved) are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phloem.kinds import ConfigError
from phloem.settings import nearest
from phloem.tasks.gym_reward import PARSED, GymReward
from phloem.tasks.plain import is_plain_arithmetic
from phloem.tasks.task import Example, ExampleTask, Setup, TaskError

__all__ = ["build", "generators"]

DEFAULT_TRAIN_SIZE = 1000
_SOLUTIONS = ("example_answer", "example_correct_answer", "possible_answer")
"""Where a generator that answers None keeps a solution, in the metadata."""
_REFUSED = {
    "composite": "it mixes others; train on one of them",
    "boxnet": "it has no gold answers, so its reward cannot be checked",
    "rush_hour": "it has no gold answers, so its reward cannot be checked",
}
_SEED_STRIDE = 1_000_003
"""Between the seeds of two data sets: item i is drawn with seed + i, so neighbouring seeds would share items."""


def generators() -> list[str]:
    """The names that can stand after `reasoning-gym:`."""
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - set(_REFUSED))


def build(generator: str, setup: Setup | None = None, *, threshold: float | None = None, **args: Any) -> ExampleTask:
    """The task of one generator; `args` are the generator's own (`num_terms`, `max_value`, ...).

    `threshold`: rewards below it become 0, from it on 1 (1: only full marks count); None keeps partial scores.
    The held-out examples do not depend on the seed. Training problems that are also held out, and repeated ones, are
    left out and counted in `notes`.

    Raises ConfigError: unknown generator or argument. TaskError: a generator that cannot be checked, no usable problem.
    """
    setup = setup or Setup()
    train_size = DEFAULT_TRAIN_SIZE if setup.train_size is None else setup.train_size
    if train_size + setup.held_out_size > _SEED_STRIDE:
        raise TaskError(
            f"task.train_size is {train_size}; at most {_SEED_STRIDE - setup.held_out_size} are drawn apart"
        )
    held_out_set = _dataset(generator, args, setup.held_out_size, seed=0)
    train_set = _dataset(generator, args, train_size, seed=(setup.seed + 1) * _SEED_STRIDE)
    notes: list[str] = []
    seen: set[str] = set()
    held_out = _examples(generator, "held-out", held_out_set, setup, seen, notes)
    train = _examples(generator, "train", train_set, setup, seen, notes)
    name = f"reasoning-gym:{generator}"
    return ExampleTask(name, train, held_out, GymReward(held_out_set, generator, args, threshold), notes=tuple(notes))


def _dataset(generator: str, args: Mapping[str, Any], size: int, seed: int) -> Any:
    import reasoning_gym

    if generator in _REFUSED:
        raise TaskError(f"reasoning-gym:{generator} cannot be trained on: {_REFUSED[generator]}")
    if generator not in (known := generators()):
        raise ConfigError(f"reasoning-gym has no generator {generator!r}; did you mean {nearest(generator, known)}?")
    try:
        return reasoning_gym.create_dataset(generator, size=size, seed=seed, **args)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"reasoning-gym:{generator} refuses task.args {dict(args)}: {error}") from error


def _examples(
    generator: str, split: str, dataset: Any, setup: Setup, seen: set[str], notes: list[str]
) -> list[Example]:
    """The usable, distinct rows; says in `notes` how many others there were."""
    name = f"reasoning-gym:{generator}"
    examples: list[Example] = []
    repeated = 0
    unusable: list[int] = []
    for index in range(len(dataset)):
        entry = dict(dataset[index])
        answer = _gold(entry, generator)
        if entry["question"] in seen:
            repeated += 1
        elif answer is None:
            unusable.append(index)
        else:
            seen.add(entry["question"])
            examples.append(Example(f"{name}-{split}-{index}", setup.prompt(entry["question"]), answer, entry))
    if repeated:
        notes.append(f"{name} {split}: {repeated} of {len(dataset)} problems left out, drawn before or held out")
    if unusable:
        rows = ", ".join(map(str, unusable[:20]))
        notes.append(f"{name} {split}: {len(unusable)} of {len(dataset)} golds are unusable: rows {rows}")
    if not examples:
        raise TaskError(f"{name}: no usable {split} problem. {' '.join(notes)}")
    return examples


def _gold(entry: Mapping[str, Any], generator: str) -> str | None:
    if entry["answer"] is not None:
        gold = str(entry["answer"])
        return gold if generator not in PARSED or is_plain_arithmetic(gold) else None
    solution = next((entry["metadata"][key] for key in _SOLUTIONS if key in entry["metadata"]), None)
    return solution if solution is None or isinstance(solution, str) else json.dumps(solution)
