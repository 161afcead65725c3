"""Generated tasks on numbers: sums, products, the larger of two, the largest of four."""

from __future__ import annotations

import random
from itertools import chain
from typing import Literal, get_args

from phloem.rewards.simple import Number
from phloem.tasks.generated import Family, Problem, build
from phloem.tasks.task import ExampleTask, Setup, TaskError

__all__ = ["larger", "max_of_4", "products", "sums"]

DEFAULT = Setup()
Style = Literal["restate", "plan", "half", "partial", "mixed"]


def sums(setup: Setup = DEFAULT, *, digits: int = 2, style: Style = "restate") -> ExampleTask:
    """What is 47 + 38? Two numbers of `digits` digits; 8,100 ordered pairs at 2.

    `style` of the demonstrations' thoughts: `restate` brings the problem into a form that is close to its answer ("47
    plus 38 is more than 70"), `plan` names the sums by place ("40 + 30 and 7 + 8"), `partial` also gives their results,
    `half` the first result only, `mixed` draws from all. None adds them up.
    """
    _check(digits=digits, style=style)

    def draw(rng: random.Random) -> Problem:
        a, b = _operand(rng, digits), _operand(rng, digits)
        terms = [(x, y, x + y) for x, y in zip(_places(a, digits), _places(b, digits), strict=True)]
        thoughts = _thoughts(style, a, b, terms, "+")
        return Problem(f"sum {min(a, b)} {max(a, b)}", f"What is {a} + {b}?", str(a + b), thoughts, {"a": a, "b": b})

    return build(Family("sums", draw, Number()), setup)


def products(setup: Setup = DEFAULT, *, digits: int = 2, style: Style = "restate") -> ExampleTask:
    """What is 47 * 6? A number of `digits` digits times one of 2 to 9; `style` as for sums."""
    _check(digits=digits, style=style)

    def draw(rng: random.Random) -> Problem:
        a, b = _operand(rng, digits), rng.randrange(2, 10)
        thoughts = _thoughts(style, a, b, [(x, b, x * b) for x in _places(a, digits)], "*")
        return Problem(f"product {a} {b}", f"What is {a} * {b}?", str(a * b), thoughts, {"a": a, "b": b})

    return build(Family("products", draw, Number(), held_out_every=2), setup)


def larger(setup: Setup = DEFAULT, *, digits: int = 2) -> ExampleTask:
    """Which is larger, 47 or 38? Two different numbers of `digits` digits."""
    _check(digits=digits)

    def draw(rng: random.Random) -> Problem:
        a, b = _operand(rng, digits), _operand(rng, digits)
        while a == b:
            b = _operand(rng, digits)
        place = next(i for i in range(digits) if str(a)[i] != str(b)[i])
        x, y = str(a)[place], str(b)[place]
        thoughts = (f"compare {a} and {b}", f"they differ in the digits {x} and {y}")
        question = f"Which is larger, {a} or {b}?"
        return Problem(f"larger {min(a, b)} {max(a, b)}", question, str(max(a, b)), thoughts, {"a": a, "b": b})

    return build(Family("larger", draw, Number()), setup)


def max_of_4(setup: Setup = DEFAULT, *, digits: int = 2) -> ExampleTask:
    """Which is the largest of 12, 45, 33, 80? Four different numbers of `digits` digits."""
    _check(digits=digits)

    def draw(rng: random.Random) -> Problem:
        numbers = rng.sample(range(10 ** (digits - 1), 10**digits), 4)
        listed = ", ".join(map(str, numbers))
        leading = ", ".join(str(number)[0] for number in numbers)
        thoughts = (f"the first digits are {leading}", f"compare {listed}")
        key = "max " + " ".join(map(str, sorted(numbers)))
        return Problem(
            key, f"Which is the largest of {listed}?", str(max(numbers)), thoughts, {"numbers": tuple(numbers)}
        )

    return build(Family("max-of-4", draw, Number()), setup)


def _check(*, digits: int, style: Style = "restate") -> None:
    if not 1 <= digits <= 9:
        raise TaskError(f"digits is {digits}; it must be between 1 and 9")
    if digits == 1 and style not in ("restate", "plan"):
        raise TaskError(f"style is {style!r}; with one digit it would state the answer, use restate")
    if style not in get_args(Style):
        raise TaskError(f"style is {style!r}; it must be one of {', '.join(get_args(Style))}")


def _operand(rng: random.Random, digits: int) -> int:
    """Uniform over the numbers of so many digits, without 0."""
    return rng.randrange(10 ** (digits - 1), 10**digits)


def _places(number: int, digits: int) -> list[int]:
    """47 -> [40, 7]."""
    return [number // 10**place % 10 * 10**place for place in reversed(range(digits))]


def _thoughts(style: Style, a: int, b: int, terms: list[tuple[int, int, int]], sign: str) -> tuple[str, ...]:
    """Wordings for a and b, split into terms (x, y, result of x sign y), largest place first."""
    verb, word = {"+": ("add", "plus"), "*": ("multiply", "times")}[sign]
    plans = [f"{x} {sign} {y}" for x, y, _ in terms]
    partials = [f"{x} {sign} {y} = {z}" for x, y, z in terms]
    halves, backwards = [partials[0], *plans[1:]], [partials[-1], *plans[-2::-1]]
    restated = [f"{a} {sign} {b}", f"{verb} {a} and {b}"]
    if len(terms) > 1:
        restated.append(f"{_listed(plans)}, so {a} {sign} {b}")
    if any(result for _, _, result in terms[1:]):  # else the first result is the answer
        restated.append(f"{a} {word} {b} is more than {terms[0][2]}")
    wordings = {
        "restate": restated,
        "plan": [_listed(plans), f"first {_listed(plans, ' then ')}", _listed(plans[::-1])],
        "half": [_listed(halves), f"first {_listed(halves, ' then ')}", _listed(backwards)],
        "partial": [_listed(partials, ", "), _listed(partials), _listed(partials[::-1], ", ")],
    }
    chosen = chain.from_iterable(wordings.values()) if style == "mixed" else wordings[style]
    return tuple(dict.fromkeys(chosen))


def _listed(parts: list[str], last: str = " and ") -> str:
    return ", ".join(parts[:-1]) + last + parts[-1] if len(parts) > 1 else parts[0]
