"""Numbers and expressions: exact arithmetic, the rules for decimals, per cent and units.

Identities that are not between rational numbers are asked of an `Algebra`, which lives in the worker processes.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Protocol

from phloem.rewards.maths.exact import NotRational, TooLarge, rational
from phloem.rewards.maths.expression import Node, is_foreign, number, symbols
from phloem.rewards.maths.values import Scalar

__all__ = ["Algebra", "GoldUnusable", "NeedsAlgebra", "Scalars"]

FLOAT_DIGITS = 10
"""A decimal with at least this many significant digits may stand for a number that has no finite decimal."""
ROUNDED_DIGITS = 3
"""A decimal gold with at least this many significant digits is taken as rounded."""
ROUNDED_SHARE = Fraction(1, 1000)


class NeedsAlgebra(Exception):
    """Exact rational arithmetic does not settle it."""


class GoldUnusable(ValueError):
    """The gold answer cannot be evaluated, whatever the answer is."""


class Algebra(Protocol):
    """What `same` asks of the worker's side."""

    def identical(self, left: Node, right: Node) -> bool:
        """Whether two expressions agree for all values of their symbols."""
        ...

    def ratio_sign(self, left: Node, right: Node) -> int:
        """1 or -1 when left / right is a positive or negative constant, else 0."""
        ...

    def real(self, node: Node) -> Any:
        """The value of a constant as a comparable real number with many digits, or None."""
        ...


class Scalars:
    """Comparisons of scalars, with an algebra or (None) by exact arithmetic alone."""

    def __init__(self, algebra: Algebra | None) -> None:
        self.algebra = algebra

    def same(self, gold: Scalar, answer: Scalar) -> bool:
        if answer.bare is not None and not symbols(gold.node) and self.nodes(gold, replace(answer, node=answer.bare)):
            return True
        if gold.percent != answer.percent:
            if self.nodes(gold, answer):  # 28 for 28%: the question asked for per cent
                return True
            return self.nodes(_as_share(gold), _as_share(answer))
        if gold.unit is None or answer.unit is None:
            return self.angles(gold, answer) or self.nodes(gold, answer)
        one, other = gold.unit, answer.unit
        if {one.kind, other.kind} == {"angle", "radian"}:
            return self.nodes(_in_radians(gold), _in_radians(answer))
        if one.kind != other.kind or one.power != other.power:
            return False
        if one.kind == "other" or one.words or other.words:
            return (not one.words or not other.words or bool(one.words & other.words)) and self.nodes(gold, answer)
        return self.nodes(_scaled(gold, one.factor), _scaled(answer, other.factor))

    def angles(self, gold: Scalar, answer: Scalar) -> bool:
        """90° against \\pi/2: only when the side without a unit is written with pi."""
        with_unit, without = (gold, answer) if gold.unit is not None else (answer, gold)
        if (
            with_unit.unit is None
            or with_unit.unit.kind != "angle"
            or not _has_pi(without.node)
            or _has_pi(with_unit.node)
        ):
            return False
        return self.nodes(_in_radians(gold), _in_radians(answer))

    def nodes(self, gold: Scalar, answer: Scalar) -> bool:
        """Equal expressions, or one the decimal of the other within the rules for decimals."""
        if gold.node == answer.node:
            return True
        exact = self.gold_rational(gold.node)
        try:
            theirs = rational(answer.node)
        except (TooLarge, ZeroDivisionError):
            return False
        except NotRational:
            theirs = None
        if exact is not None and theirs is not None:
            return exact == theirs or _rounded(gold, answer, exact, theirs)
        if is_foreign(answer.node) and not is_foreign(gold.node):
            return False  # an unevaluated sum, integral or limit answers only a gold that has one
        if self.algebra is None:
            raise NeedsAlgebra
        if self.algebra.identical(gold.node, answer.node):
            return True
        decimal = gold.place is not None or answer.digits >= FLOAT_DIGITS
        if not decimal:
            return False
        ours, value = self.algebra.real(gold.node), self.algebra.real(answer.node)
        return ours is not None and value is not None and _rounded(gold, answer, ours, value)

    def gold_rational(self, node: Node) -> Fraction | None:
        try:
            return rational(node)
        except NotRational:
            return None
        except TooLarge as error:
            raise GoldUnusable(
                f"the gold answer is {error}; only an answer written the same way can be judged"
            ) from error
        except ZeroDivisionError as error:
            raise GoldUnusable("the gold answer divides by zero") from error

    def equal_nodes(self, gold: Node, answer: Node) -> bool:
        return self.nodes(Scalar(gold), Scalar(answer))

    def claim_holds(self, claim: tuple[Node, Node, bool]) -> bool:
        left, right, approximate = claim
        if symbols(left) or symbols(right):
            return self.equal_nodes(left, right) if not approximate else True
        try:
            a: Any = rational(left)
            b: Any = rational(right)
        except (TooLarge, ZeroDivisionError):
            return left == right
        except NotRational:
            if self.algebra is None:
                raise NeedsAlgebra from None
            if not approximate:
                return self.algebra.identical(left, right)
            a, b = self.algebra.real(left), self.algebra.real(right)
            if a is None or b is None:
                return False
        return a == b or (approximate and abs(a - b) * 100 <= max(abs(a), abs(b)))


def _rounded(gold: Scalar, answer: Scalar, exact: Any, theirs: Any) -> bool:
    """The two rules for decimals; `exact` and `theirs` are the two values."""
    apart = abs(exact - theirs)
    if gold.place is not None:
        half, share = _as(apart, gold.place / 2), _as(apart, ROUNDED_SHARE)
        return gold.digits >= ROUNDED_DIGITS and apart <= half and apart <= share * max(abs(exact), abs(theirs))
    if answer.place is None or answer.digits < FLOAT_DIGITS:
        return False
    endless = not isinstance(exact, Fraction) or not _terminates(exact)
    return endless and apart <= _as(apart, answer.place)


def _as(like: Any, value: Fraction) -> Any:
    return value if isinstance(like, Fraction) else type(like)(value.numerator) / value.denominator


def _terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _scaled(scalar: Scalar, factor: Fraction) -> Scalar:
    place = None if scalar.place is None else scalar.place * factor
    return replace(scalar, node=Node("mul", (scalar.node, number(factor))), place=place)


def _as_share(scalar: Scalar) -> Scalar:
    return replace(scalar, node=Node("percent", (scalar.node,))) if scalar.percent else scalar


def _in_radians(scalar: Scalar) -> Scalar:
    degrees = scalar.unit is not None and scalar.unit.kind == "angle"
    return replace(scalar, node=Node("deg", (scalar.node,)), place=None) if degrees else scalar


def _has_pi(node: Node) -> bool:
    return (node.head == "sym" and node.name == "pi") or any(map(_has_pi, node.args))
