"""How small generated tasks are made: drawing, the split, prompts, demonstrations.

Problems are drawn from a seeded generator. Which side a problem is on, training or held-out, is decided by a hash of
the problem alone, so the two never meet, whatever the seed and the sizes; a + b and b + a are on the same side. The
held-out examples do not depend on the seed.

The reward is 1 for the right answer in a strictly well-formed `<think>...</think><answer>...</answer>`, else 0.
Demonstrations are short, and their thoughts prepare the answer without stating it: a thought that states it would leave
its answers nothing to decide, and the reward would not vary within a thought.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phloem.rewards.compose import Gate, Reward
from phloem.rewards.format import Format
from phloem.tasks.task import Example, ExampleTask, Setup, TaskError

__all__ = ["Family", "Problem", "build"]

DEFAULT_TRAIN_SIZE = 4096
DEMONSTRATIONS = 2
"""Per training problem, of different wording where the family has as many."""
_HELD_OUT_SEED = 20240229
_PATIENCE = 20_000
"""Draws in a row without a new problem after which hardly any are left."""


@dataclass(frozen=True)
class Problem:
    """A drawn problem. Problems of equal `key` are on the same side of the split."""

    key: str
    question: str
    answer: str
    thoughts: tuple[str, ...]
    """Wordings of a demonstration's thought, of which each example gets a few."""
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """How one kind of problem is drawn and scored."""

    name: str
    draw: Callable[[random.Random], Problem]
    reward: Reward
    held_out_every: int = 8
    """One problem in this many is held out."""


def build(family: Family, setup: Setup) -> ExampleTask:
    """The task of a family: distinct training problems (`setup.train_size`, None: up to 4,096) and held-out ones.

    Raises TaskError where the family does not have as many problems as asked for.
    """
    held_out = _distinct(family, random.Random(_HELD_OUT_SEED), setup.held_out_size, held_out=True)
    _require(family.name, "held_out_size", len(held_out), setup.held_out_size)
    train_size = DEFAULT_TRAIN_SIZE if setup.train_size is None else setup.train_size
    train = _distinct(family, random.Random(f"{family.name} {setup.seed}"), train_size, held_out=False)
    _require(family.name, "train_size", len(train), setup.train_size or 1)
    return ExampleTask(
        name=family.name,
        train=[
            Example(
                f"{family.name}-train-{index}",
                setup.prompt(problem.question),
                problem.answer,
                problem.row,
                _demonstrations(problem, setup.seed),
            )
            for index, problem in enumerate(train)
        ],
        held_out=[
            Example(f"{family.name}-held-out-{index}", setup.prompt(problem.question), problem.answer, problem.row)
            for index, problem in enumerate(held_out)
        ],
        reward=Gate(Format(), family.reward),
    )


def _require(name: str, setting: str, found: int, wanted: int) -> None:
    if found < wanted:
        raise TaskError(
            f"task {name} has about {found} such problems, fewer than task.{setting} {wanted}: "
            f"lower task.{setting}, or make the problems larger through task.args"
        )


def _demonstrations(problem: Problem, seed: int) -> tuple[str, ...]:
    rng = random.Random(f"{seed} {problem.question}")
    thoughts = rng.sample(problem.thoughts, min(DEMONSTRATIONS, len(problem.thoughts)))
    return tuple(f"<think>{thought}</think><answer>{problem.answer}</answer>" for thought in thoughts)


def _distinct(family: Family, rng: random.Random, size: int, *, held_out: bool) -> list[Problem]:
    """Up to `size` problems with different questions from one side of the split, in drawing order."""
    found: dict[str, Problem] = {}
    misses = 0
    while len(found) < size and misses < _PATIENCE:
        problem = family.draw(rng)
        if _is_held_out(problem.key, family.held_out_every) == held_out and problem.question not in found:
            found[problem.question] = problem
            misses = 0
        else:
            misses += 1
    return list(found.values())


def _is_held_out(key: str, every: int) -> bool:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % every == 0
