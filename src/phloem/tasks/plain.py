"""Which texts are plain enough for an evaluator that would run them: literals, and small arithmetic."""

from __future__ import annotations

import ast

__all__ = ["is_code", "is_plain_arithmetic", "is_plain_literal"]

MAX_TERMS = 500
"""An expression may have so many terms once it is multiplied out."""
_FUNCTIONS = ("exp", "log", "ln", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "Abs")


def is_plain_literal(text: str) -> bool:
    """Whether `eval(text)` can do no more than build numbers, strings, lists and tuples."""
    try:
        ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def is_code(text: str) -> bool:
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
        case ast.Constant(value=int() | float() as value):
            return abs(value) < 1e15
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
        case ast.Constant(value=int() | float() as value):
            return abs(value) <= 20
    return False


def _has_power(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Pow) for part in ast.walk(node))
