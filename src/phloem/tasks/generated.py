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
from phloem.tasks.task import Example, ExampleTask, Prompt, TaskError

__all__ = ["INSTRUCTION", "Family", "Problem", "build"]

INSTRUCTION = "Think inside <think> tags, then answer inside <answer> tags."
DEFAULT_TRAIN_SIZE = 4096
DEMONSTRATIONS = 2
"""Per training problem, of different wording where the family has as many."""
_HELD_OUT_SEED = 20240229


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


def build(
    family: Family,
    *,
    seed: int = 0,
    train_size: int | None = None,
    held_out_size: int = 256,
    instruction: str = INSTRUCTION,
    instruction_role: str = "system",
) -> ExampleTask:
    """The task of a family: `train_size` distinct training problems (None: up to 4,096) and `held_out_size` others.

    `instruction` asks for the format, as the system message or at the end of the question (for chat templates without a
    system role). Raises TaskError where the family does not have as many problems.
    """
    if instruction_role not in ("system", "user"):
        raise TaskError(f"instruction_role is {instruction_role!r}; it must be 'system' or 'user'")
    held_out = _distinct(family, random.Random(_HELD_OUT_SEED), held_out_size, held_out=True)
    if len(held_out) < held_out_size:
        raise TaskError(
            f"task {family.name} has {len(held_out)} held-out problems, fewer than held_out_size {held_out_size}: "
            "lower task.held_out_size, or make the problems larger through task.args"
        )
    rng = random.Random(f"{family.name} {seed}")
    train = _distinct(family, rng, train_size or DEFAULT_TRAIN_SIZE, held_out=False)
    if train_size is not None and len(train) < train_size:
        raise TaskError(
            f"task {family.name} has {len(train)} training problems, fewer than train_size {train_size}: "
            "lower task.train_size, or make the problems larger through task.args"
        )

    def example(index: int, problem: Problem, split: str) -> Example:
        thoughts = _some(problem.thoughts, f"{seed} {problem.question}") if split == "train" else ()
        demonstrations = tuple(f"<think>{thought}</think><answer>{problem.answer}</answer>" for thought in thoughts)
        prompt = _prompt(problem.question, instruction, instruction_role)
        return Example(f"{family.name}-{split}-{index}", prompt, problem.answer, problem.row, demonstrations)

    return ExampleTask(
        name=family.name,
        train=[example(i, problem, "train") for i, problem in enumerate(train)],
        held_out=[example(i, problem, "held-out") for i, problem in enumerate(held_out)],
        reward=Gate(Format(), family.reward),
    )


def _some(thoughts: tuple[str, ...], seed: str) -> list[str]:
    return random.Random(seed).sample(thoughts, min(DEMONSTRATIONS, len(thoughts)))


def _prompt(question: str, instruction: str, role: str) -> Prompt:
    if not instruction:
        return question
    if role == "user":
        return f"{question} {instruction}"
    return ({"role": "system", "content": instruction}, {"role": "user", "content": question})


def _distinct(family: Family, rng: random.Random, size: int, *, held_out: bool) -> list[Problem]:
    """Up to `size` problems with different questions from one side of the split, in drawing order."""
    found: dict[str, Problem] = {}
    misses = 0
    while len(found) < size and misses < 20_000:  # so many in a row: hardly any are left
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
