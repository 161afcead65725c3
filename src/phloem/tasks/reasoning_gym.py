"""reasoning-gym's generators as tasks, scored by their own scorers.

Confessed departures from the library:

- Some of its scorers run `eval` or sympy's `parse_expr` on the answer, which executes what the policy wrote. Answers to
  those generators reach the scorer only if they are plain literals or plain arithmetic of bounded size
  (`is_plain_literal`, `is_plain_arithmetic`); anything else scores 0.
- A completion without an answer scores 0, where some scorers pay .01.
- Golds that the library gives as None are replaced by the solution it keeps beside the problem. `rush_hour` and
  `boxnet` keep none, so their rewards cannot be checked and they are refused, as is `composite`.
- Problems whose gold is the question handed back (an `Integral(...)` that was never solved) are left out.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phloem.kinds import ConfigError
from phloem.rewards.format import extract_answer
from phloem.rewards.verdict import Verdict
from phloem.settings import nearest
from phloem.tasks.task import Example, ExampleTask, Setup, TaskError

__all__ = ["GymReward", "build", "generators", "is_plain_arithmetic", "is_plain_literal"]

DEFAULT_TRAIN_SIZE = 1000
MAX_CHARACTERS = 20_000
"""A longer answer is not scored by the library: it gets 0."""

_EVALUATED = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
_PARSED = ("countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration")
_SOLUTIONS = ("example_answer", "example_correct_answer", "possible_answer")
"""Where a generator that answers None keeps a solution, in the metadata."""
_REFUSED = {
    "composite": "it mixes others; train on one of them",
    "boxnet": "it has no gold answers, so its reward cannot be checked",
    "rush_hour": "it has no gold answers, so its reward cannot be checked",
}
_FUNCTIONS = ("exp", "log", "ln", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "Abs")
MAX_TERMS = 500
"""A parsed answer may have so many terms once it is multiplied out."""
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
    return ExampleTask(name, train, held_out, GymReward(held_out_set, generator, threshold), notes=tuple(notes))


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
        return gold if generator not in _PARSED or is_plain_arithmetic(gold) else None
    solution = next((entry["metadata"][key] for key in _SOLUTIONS if key in entry["metadata"]), None)
    return solution if solution is None or isinstance(solution, str) else json.dumps(solution)


@dataclass(frozen=True)
class GymReward:
    """A generator's own scorer on the extracted answer; `row` is the generator's entry.

    A scorer that raises was made to by the answer: a fault that scores 0.
    """

    dataset: Any
    generator: str
    threshold: float | None = None

    def __call__(self, completion: str, answer: Any, row: Mapping[str, Any]) -> Verdict:
        offered = extract_answer(completion)
        gold = None if answer is None else str(answer)
        if offered is None:
            return Verdict.no_answer("no complete <answer> element after the thinking", gold=gold)
        if not self._may_see(offered, gold):
            return Verdict.no_answer("not a plain expression of bounded size", extracted=offered[:200], gold=gold)
        try:
            score = float(self.dataset.score_answer(answer=offered, entry=dict(row)))
        except (Exception, SystemExit) as error:
            detail = f"the scorer of {self.generator} raised {type(error).__name__}: {error}"
            return Verdict.fault(detail, by_completion=True, extracted=offered, gold=gold)
        if self.threshold is not None:
            score = float(score >= self.threshold)
        make = Verdict.right if score >= 1 else Verdict.wrong
        return make(offered, reward=score, gold=gold)

    def _may_see(self, offered: str, gold: str | None) -> bool:
        if len(offered) > MAX_CHARACTERS:
            return False
        if self.generator in _EVALUATED:
            return offered == gold or is_plain_literal(offered) or not _is_code(offered)
        return self.generator not in _PARSED or is_plain_arithmetic(offered)


def is_plain_literal(text: str) -> bool:
    """Whether `eval(text)` can do no more than build numbers, strings, lists and tuples."""
    try:
        ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_code(text: str) -> bool:
    """Whether Python would compile the text at all; if not, `eval` raises before anything runs."""
    try:
        compile(text.strip(), "<answer>", "eval", flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError):
        return False
    except (MemoryError, RecursionError):
        return True
    return True


def is_plain_arithmetic(text: str) -> bool:
    """Whether a text is arithmetic that can be evaluated without harm, in bounded time.

    Numbers of at most 15 digits, names of at most two letters, + - * / and ** with a constant exponent of at most 20,
    at most 8 elementary functions; at most 500 characters, and at most 500 terms once multiplied out.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body if len(text) <= 500 else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    if tree is None or not _is_plain(tree) or sum(isinstance(part, ast.Call) for part in ast.walk(tree)) > 8:
        return False
    return _terms(tree) <= MAX_TERMS


def _terms(node: ast.expr) -> float:
    """An upper bound on the terms of a plain expression multiplied out."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _terms(left) + _terms(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(exponent))):
            return _terms(left) ** exponent
        case ast.BinOp(left=left, right=right):
            return _terms(left) * _terms(right)
        case ast.UnaryOp(operand=operand):
            return _terms(operand)
        case ast.Call(args=[argument]):
            return _terms(argument)
    return 1.0


def _is_plain(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float) and abs(value) < 1e15
        case ast.Name(id=name):
            return len(name) <= 2 and name.isalpha()
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _is_plain(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _is_plain(left) and _is_small_exponent(right) and not _has_power(left)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return _is_plain(left) and _is_plain(right)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return name in _FUNCTIONS and _is_plain(argument)
    return False


def _is_small_exponent(node: ast.expr) -> bool:
    """A number of at most 20, or a quotient of two."""
    match node:
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _is_small_exponent(operand)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _is_small_exponent(left) and _is_small_exponent(right)
        case ast.Constant(value=value):
            return type(value) in (int, float) and abs(value) <= 20
    return False


def _has_power(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Pow) for part in ast.walk(node))
