"""Rational trees as exact fractions. Sizes are bounded before anything is computed, so a tower costs microseconds."""

from __future__ import annotations

import math
from fractions import Fraction

from phloem.rewards.maths.expression import Node

__all__ = ["NotRational", "TooLarge", "rational"]

MAX_BITS = 200_000
MAX_FACTORIAL = 10_000


class NotRational(ValueError):
    """The tree holds a symbol, a root or a function whose value is not known to be rational."""


class TooLarge(ValueError):
    """A finite number too large to write out."""


def rational(node: Node) -> Fraction:
    """The tree's value as an exact fraction.

    Raises NotRational, TooLarge, and ZeroDivisionError for 1/0.
    """
    head = node.head
    if head == "num":
        assert node.value is not None
        return node.value
    if head == "neg":
        return -rational(node.args[0])
    if head in _BINARY:
        return _BINARY[head](*map(rational, node.args))
    if head == "add":
        return _checked(sum((rational(arg) for arg in node.args), Fraction(0)))
    if head in _UNARY:
        return Fraction(_UNARY[head](rational(node.args[0])))
    if head in ("sqrt", "root"):
        return _root(*map(rational, node.args))
    raise NotRational(str(head))


def bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _checked(value: Fraction) -> Fraction:
    if bits(value) > MAX_BITS:
        raise TooLarge("a number of more than 60,000 digits")
    return value


def _multiply(a: Fraction, b: Fraction) -> Fraction:
    return _checked(a * b)


def _divide(a: Fraction, b: Fraction) -> Fraction:
    return _checked(a / b)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if exponent.denominator == 2 and abs(exponent.numerator) < MAX_BITS:
            return _power(_root(base), Fraction(exponent.numerator))
        raise NotRational("a fractional power")
    if base in (0, 1, -1):
        if base == 0 and exponent < 0:
            raise ZeroDivisionError
        return base if exponent.numerator % 2 or base == 0 != exponent else Fraction(1)
    if bits(base) * abs(exponent.numerator) > MAX_BITS:
        raise TooLarge("a power of more than 60,000 digits")
    return base**exponent.numerator


def _root(value: Fraction, degree: Fraction = Fraction(2)) -> Fraction:
    """The square root of a perfect square; other degrees are left to the algebra."""
    if degree != 2 or value < 0:
        raise NotRational("a root")
    top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if top * top != value.numerator or bottom * bottom != value.denominator:
        raise NotRational("an irrational root")
    return Fraction(top, bottom)


def _factorial(value: Fraction) -> int:
    if value.denominator != 1 or value < 0:
        raise NotRational("a factorial of a number that is not a whole one")
    if value > MAX_FACTORIAL:
        raise TooLarge("a factorial of more than 30,000 digits")
    return math.factorial(value.numerator)


def _binomial(n: Fraction, k: Fraction) -> Fraction:
    if n.denominator != 1 or k.denominator != 1 or n < 0 or k < 0:
        raise NotRational("a general binomial")
    if n > MAX_FACTORIAL:
        raise TooLarge("a binomial of more than 3,000 digits")
    return Fraction(math.comb(n.numerator, k.numerator))


_UNARY = {"abs": abs, "floor": math.floor, "ceil": math.ceil, "fact": _factorial, "percent": lambda value: value / 100}
_BINARY = {"mul": _multiply, "div": _divide, "pow": _power, "binom": _binomial}
