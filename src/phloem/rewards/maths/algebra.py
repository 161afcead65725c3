"""Identities of expressions by evaluation at many points with many digits. Runs in worker processes only.

Two expressions agree when they do so at every sample point where both are real, to 35 of 60 digits; when they are
real almost nowhere, their complex values must agree. An identity of school functions that holds at twelve unrelated
points to 35 digits holds; one that fails, fails at the first. This needs no simplifier, whose running time nobody can
bound.

Integrals and limits are read by math-verify's LaTeX parser and compared by sympy.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import mpmath
from mpmath import mp, mpc, mpf
from mpmath.libmp import NoConvergence

from phloem.rewards.maths.expression import Node, is_foreign, symbols

__all__ = ["identical", "ratio_sign", "real"]

DIGITS = 60
POINTS = 12
MAX_TERMS = 1000  # of a sum or product
MAX_LOG2 = 2_000_000  # of a value; mpmath holds larger ones, but slowly
_INTEGER_NAMES = set("nmkNMKijpqrsdl")
_UNARY: dict[str, Callable[[Any], Any]] = {
    "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot, "sec": mpmath.sec, "csc": mpmath.csc,
    "asin": mpmath.asin, "acos": mpmath.acos, "atan": mpmath.atan, "acot": mpmath.acot, "sinh": mpmath.sinh,
    "cosh": mpmath.cosh, "tanh": mpmath.tanh, "ln": mpmath.log, "log10": mpmath.log10, "abs": abs,
    "floor": mpmath.floor, "ceil": mpmath.ceil, "sqrt": mpmath.sqrt, "neg": lambda x: -x,
    "percent": lambda x: x / 100, "deg": lambda x: x * mp.pi / 180,
}  # fmt: skip


class Undefined(ArithmeticError):
    """The expression has no value at this point, or one too large to evaluate."""


def identical(left: Node, right: Node) -> bool:
    """Whether two expressions agree wherever both are defined and real."""
    if left == right:
        return True
    if is_foreign(left) or is_foreign(right):
        return _foreign_identical(left, right)
    names = _variables(left) | _variables(right)
    if any(_agree(left, right, _samples(names), log) for log in _log_readings(left, right)):
        return True
    if names and all(name in _INTEGER_NAMES for name in names):
        return _agree(left, right, _integer_samples(names), "ln")
    return False


def ratio_sign(left: Node, right: Node) -> int:
    """1 or -1 when left / right is one positive or negative constant at every sample point, else 0."""
    if is_foreign(left) or is_foreign(right):
        return 0
    names = _variables(left)
    if not names or names != _variables(right):
        return 0
    ratios = []
    for point in _samples(names):
        try:
            a, b = _value(left, point), _value(right, point)
        except Undefined:
            continue
        if _is_real(a) and _is_real(b) and a != 0 and b != 0:
            ratios.append(mpmath.re(a) / mpmath.re(b))
    if len(ratios) < 4 or any(not _close(ratio, ratios[0]) for ratio in ratios):
        return 0
    return 1 if ratios[0] > 0 else -1


def real(node: Node) -> Any:
    """A constant's value as an mpf, or None when it has symbols, is complex or is not defined."""
    if symbols(node) or is_foreign(node):
        return None
    try:
        with mp.workdps(DIGITS):
            value = _evaluate(node, {}, "ln")
    except Undefined:
        return None
    return mpmath.re(value) if _is_real(value) else None


# -- sample points ---------------------------------------------------------------------------------------------------


def _spread(*key: object) -> Any:
    """A number in (0, 1) that depends on the key alone, with as many digits as a double has."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return mpf(int.from_bytes(digest[:8], "big") | 1) / 2**64


def _samples(names: set[str]) -> Iterator[dict[str, Any]]:
    """Points below 1, above 1, negative, and of mixed sign. One empty point when there are no names."""
    if not names:
        yield {}
        return
    for k in range(POINTS):
        point = {}
        for name in names:
            u = _spread(k, name)
            mixed = u * 6 - 3
            point[name] = (u, 1 + 3 * u, -3 * u, mixed)[k % 4]
        yield point


def _variables(node: Node) -> set[str]:
    """Free symbols without the names of functions: what a sample point gives values to."""
    if node.head == "sym":
        return symbols(node)
    found = set().union(*map(_variables, node.args))
    return found - {node.name} if node.head in ("sum", "prod") else found


def _integer_samples(names: set[str]) -> Iterator[dict[str, Any]]:
    for k in range(POINTS):
        yield {name: mpf(1 + k + int(5 * _spread(k, name, "integer"))) for name in names}


def _log_readings(left: Node, right: Node) -> tuple[str, ...]:
    """`\\log` without a base is the natural logarithm or base 10, on both sides alike."""
    return ("ln", "log10") if _has_head(left, "log") or _has_head(right, "log") else ("ln",)


def _agree(left: Node, right: Node, points: Iterator[dict[str, Any]], log: str) -> bool:
    seen_real, seen_complex, differ_complex = 0, 0, False
    for point in points:
        try:
            with mp.workdps(DIGITS):
                a, b = _evaluate(left, point, log), _evaluate(right, point, log)
                equal = _close(a, b)
        except Undefined:
            continue
        if not equal:
            equal = _both_vanish(left, right, point, log, a, b)
        if _is_real(a) and _is_real(b):
            if not equal:
                return False
            seen_real += 1
        elif _is_real(a) == _is_real(b):
            seen_complex += 1
            differ_complex |= not equal
        elif not point:
            return False
    if not _variables(left) and not _variables(right):
        return seen_real + seen_complex == 1 and not differ_complex
    return seen_real >= 3 or (seen_real == 0 and seen_complex >= 4 and not differ_complex)


def _both_vanish(left: Node, right: Node, point: dict[str, Any], log: str, a: Any, b: Any) -> bool:
    """Whether a tiny difference is rounding noise: it then shrinks with more digits."""
    if abs(a - b) > mpf(10) ** -30:
        return False
    try:
        with mp.workdps(2 * DIGITS):
            finer = abs(_evaluate(left, point, log) - _evaluate(right, point, log))
    except Undefined:
        return False
    return finer <= abs(a - b) * mpf(10) ** -30


def _close(a: Any, b: Any) -> bool:
    return a == b or abs(a - b) <= mpf(10) ** -35 * max(abs(a), abs(b))


def _is_real(value: Any) -> bool:
    return not isinstance(value, mpc) or abs(value.imag) <= mpf(10) ** -40 * max(abs(value.real), mpf(10) ** -20)


# -- evaluation ------------------------------------------------------------------------------------------------------


def _value(node: Node, point: dict[str, Any]) -> Any:
    with mp.workdps(DIGITS):
        return _evaluate(node, point, "ln")


def _evaluate(node: Node, point: dict[str, Any], log: str) -> Any:
    try:
        value = _operate(node, point, log)
    except (ZeroDivisionError, ValueError, TypeError, OverflowError, NoConvergence) as error:
        raise Undefined(str(error)) from error
    if not mpmath.isfinite(value) and node.head != "inf":
        raise Undefined("not finite")
    return value


def _operate(node: Node, point: dict[str, Any], log: str) -> Any:
    head = node.head
    if head == "num":
        assert node.value is not None
        return mpf(node.value.numerator) / node.value.denominator
    if head == "sym":
        return _symbol(node.name, point)
    if head == "inf":
        raise Undefined("infinite")
    if head in ("sum", "prod"):
        return _series(node, point, log)
    args = [_evaluate(arg, point, log) for arg in node.args]
    if head in _UNARY:
        _guard_magnitude(head, args[0])
        return _UNARY[head](args[0])
    if head == "add":
        return sum(args[1:], args[0])
    if head == "mul":
        return args[0] * args[1]
    if head == "div":
        return args[0] / args[1]
    if head == "pow":
        return _power(args[0], args[1])
    if head == "exp":
        return _power(mp.e, args[0])
    if head == "fact":
        _guard_factorial(args[0])
        return mpmath.factorial(args[0])
    if head == "root":
        return _real_root(args[0], args[1])
    if head == "log":
        return _logarithm(args, log)
    if head == "binom":
        _guard_factorial(args[0])
        return mpmath.binomial(args[0], args[1])
    if head == "apply":
        return 1 + 2 * _spread(node.name, *(mpmath.nstr(arg, 20) for arg in args))
    raise Undefined(f"no value for {head}")


def _series(node: Node, point: dict[str, Any], log: str) -> Any:
    """A sum or product over whole numbers of an index, of at most MAX_TERMS terms."""
    term, low, high = node.args
    first, last = _evaluate(low, point, log), _evaluate(high, point, log)
    if not all(_is_real(end) and abs(end) < 10**9 and end == int(mpmath.re(end)) for end in (first, last)):
        raise Undefined("an index that does not run over whole numbers below a thousand million")
    first, last = int(mpmath.re(first)), int(mpmath.re(last))
    if last - first >= MAX_TERMS:
        raise Undefined("a series too long to evaluate")
    total = mpf(0) if node.head == "sum" else mpf(1)
    for index in range(first, last + 1):
        value = _evaluate(term, {**point, node.name: mpf(index)}, log)
        total = total + value if node.head == "sum" else total * value
    return total


def _symbol(name: str, point: dict[str, Any]) -> Any:
    if name in point:
        return point[name]
    if name == "pi":
        return +mp.pi
    if name == "e":
        return +mp.e
    if name == "i":
        return mpc(0, 1)
    raise Undefined(f"no value for {name}")


def _logarithm(args: list[Any], reading: str) -> Any:
    if len(args) == 2:
        return mpmath.log(args[0]) / mpmath.log(args[1])
    return mpmath.log10(args[0]) if reading == "log10" else mpmath.log(args[0])


def _power(base: Any, exponent: Any) -> Any:
    if base == 0:
        if mpmath.re(exponent) <= 0 and exponent != 0:
            raise ZeroDivisionError
        return mpf(1) if exponent == 0 else mpf(0)
    if abs(exponent) > 1 and abs(exponent) * (abs(mpmath.mag(base)) + 1) > MAX_LOG2:
        raise Undefined("a power too large to evaluate")
    return mpmath.power(base, exponent)


def _real_root(radicand: Any, degree: Any) -> Any:
    odd = _is_real(degree) and abs(degree) < 10**6 and degree == int(mpmath.re(degree)) and int(mpmath.re(degree)) % 2
    if odd and _is_real(radicand) and mpmath.re(radicand) < 0:
        return -mpmath.root(-mpmath.re(radicand), int(mpmath.re(degree)))
    return _power(radicand, 1 / degree)


def _guard_factorial(value: Any) -> None:
    if abs(value) > 100_000:
        raise Undefined("a factorial too large to evaluate")


def _guard_magnitude(head: str, value: Any) -> None:
    """Trigonometric functions of huge arguments need as many digits as the argument has."""
    if head not in ("neg", "percent", "abs", "sqrt") and abs(value) > mpf(10) ** 40:
        raise Undefined(f"{head} of a number above 1e40")


# -- integrals, limits -----------------------------------------------------------------------------------------


def _has_head(node: Node, head: str) -> bool:
    return (node.head == head and len(node.args) == 1) or any(_has_head(arg, head) for arg in node.args)


def _foreign_identical(left: Node, right: Node) -> bool:
    """Two texts that math-verify's parser reads, compared by sympy; False when it cannot read one.

    The parser drops the case of letters, so texts in which both R and r occur are not compared.
    """
    import sympy
    from math_verify.parser import parse_latex_cached

    texts = [_latex(node) for node in (left, right)]
    letters = set(re.findall(r"(?<![\\A-Za-z])[A-Za-z]", " ".join(texts)))
    if any(letter.swapcase() in letters for letter in letters):
        return False
    try:
        a, b = map(parse_latex_cached, texts)
    except Exception:  # the parser raises bare Exception for everything it cannot read
        return False
    if not isinstance(a, sympy.Expr) or not isinstance(b, sympy.Expr):
        return False
    return a == b or sympy.expand((a - b).doit()) == 0


def _latex(node: Node) -> str:
    """A tree as LaTeX for math-verify's parser: a foreign text as it stands, other nodes by their operations."""
    if node.head == "foreign":
        return node.name.replace("∞", "\\infty ").replace("*", "\\cdot ")
    if node.head == "num":
        assert node.value is not None
        return f"\\frac{{{node.value.numerator}}}{{{node.value.denominator}}}"
    if node.head == "sym":
        return "\\pi" if node.name == "pi" else node.name
    shapes = {"add": "+", "mul": "\\cdot "}
    parts = [f"({_latex(arg)})" for arg in node.args]
    if node.head in shapes:
        return shapes[node.head].join(parts)
    if node.head == "div":
        return f"\\frac{{{_latex(node.args[0])}}}{{{_latex(node.args[1])}}}"
    if node.head == "pow":
        return f"{parts[0]}^{{{_latex(node.args[1])}}}"
    if node.head == "neg":
        return f"-{parts[0]}"
    return f"\\{node.head}{parts[0]}"
