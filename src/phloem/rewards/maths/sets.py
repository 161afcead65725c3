"""Intervals, unions and inequalities in one variable as sets of real numbers."""

from __future__ import annotations

import itertools
import re

from phloem.rewards.maths.expression import Node, Unreadable
from phloem.rewards.maths.grammar import read_expression
from phloem.rewards.maths.notation import split_top, squeeze
from phloem.rewards.maths.values import Inequality, Piece, RealSet, Scalar, Sequence, Value

__all__ = ["as_real_set", "is_set_text", "read_inequality", "read_set"]

INFINITY = Node("inf")
MINUS_INFINITY = Node("neg", (INFINITY,))
_REALS = ("\\mathbb{R}", "\\mathbb{{R}}", "\\mathbb R", "\\text{all real numbers}", "all real numbers", "all reals")


def is_set_text(text: str) -> bool:
    return text in _REALS or (any(c in text for c in "∪∖") and len(split_top(text, ("∪", "∖")) or ()) > 1)


def read_set(text: str) -> RealSet:
    """A union of intervals and finite sets, or all reals but a finite set. Raises Unreadable."""
    if text.strip() in _REALS:
        return RealSet((Piece(MINUS_INFINITY, INFINITY, False, False),))
    if "∖" in text:
        whole, _, removed = text.partition("∖")
        if whole.strip() not in _REALS or "∪" in removed:
            raise Unreadable("a difference of sets that is not the reals without some points")
        return _without_points([piece.low for piece in _read_part(removed)])
    parts = split_top(text, ("∪",)) or []
    return RealSet(tuple(piece for part in parts for piece in _read_part(part)))


def _read_part(text: str) -> tuple[Piece, ...]:
    text = text.strip()
    if any(sign in text for sign in "<>≤≥≠"):
        value = read_inequality(text)
        if not isinstance(value, RealSet):
            raise Unreadable("an inequality in several variables inside a union")
        return value.pieces
    if text.startswith("\\{") and text.endswith("\\}"):
        points = [read_expression(part.strip()) for part in split_top(text[2:-2], (",",)) or []]
        return tuple(Piece(point, point, True, True) for point in points)
    ends = split_top(text[1:-1], (",",)) if len(text) > 4 and text[0] in "([" and text[-1] in ")]" else None
    if ends is None or len(ends) != 2:
        raise Unreadable(f"not an interval: {text[:40]!r}")
    low, high = (read_expression(end.strip()) for end in ends)
    return (Piece(low, high, text[0] == "[", text[-1] == "]"),)


def _without_points(points: list[Node]) -> RealSet:
    ends = [MINUS_INFINITY, *points, INFINITY]
    return RealSet(tuple(Piece(a, b, False, False) for a, b in itertools.pairwise(ends)))


def read_inequality(text: str) -> Value:
    """`x > 2`, `-2 ≤ x < 7`, `x ≠ 3` as a set of reals; anything else as an `Inequality`. Raises Unreadable."""
    parts = [part.strip() for part in re.split(r"[<>≤≥≠]", text)]
    signs = [char for char in text if char in "<>≤≥≠"]
    if len(parts) > 3 or not all(parts):
        raise Unreadable("a chain of more than two inequalities")
    nodes = [read_expression(part) for part in parts]
    if signs == ["≠"] and _is_name(nodes[0]) and _is_constant(nodes[1]):
        return RealSet(_without_points([nodes[1]]).pieces, squeeze(parts[0]))
    if "≠" in signs:
        raise Unreadable("a chain with ≠")
    if len(nodes) == 3:
        if len({sign in "<≤" for sign in signs}) != 1:
            raise Unreadable("inequalities that point both ways")
        if signs[0] in ">≥":
            nodes, signs, parts = nodes[::-1], [_flip(s) for s in signs[::-1]], parts[::-1]
        if not _is_name(nodes[1]):
            raise Unreadable("a two-sided inequality about an expression")
        return RealSet((Piece(nodes[0], nodes[2], signs[0] == "≤", signs[1] == "≤"),), squeeze(parts[1]))
    left, right, sign = nodes[0], nodes[1], signs[0]
    if _is_name(right) and not _is_name(left):
        left, right, sign, parts = right, left, _flip(sign), parts[::-1]
    if _is_name(left) and _is_constant(right):
        name = squeeze(parts[0])
        if sign in ">≥":
            return RealSet((Piece(right, INFINITY, sign == "≥", False),), name)
        return RealSet((Piece(MINUS_INFINITY, right, False, sign == "≤"),), name)
    if sign in ">≥":
        left, right, sign = right, left, _flip(sign)
    return Inequality(left, right, sign)


def as_real_set(value: Value) -> RealSet | None:
    """A value as a set of reals, where it can be one: (a,b) as an interval, {a,b} as points."""
    if isinstance(value, RealSet):
        return value
    if not isinstance(value, Sequence):
        return None
    nodes = [item.node for item in value.items if isinstance(item, Scalar)]
    if len(nodes) != len(value.items):
        return None
    if value.kind == "tuple" and len(nodes) == 2:
        return RealSet((Piece(nodes[0], nodes[1], value.left == "[", value.right == "]"),))
    if value.kind == "set":
        return RealSet(tuple(Piece(node, node, True, True) for node in nodes))
    return None


def _flip(sign: str) -> str:
    return {"<": ">", ">": "<", "≤": "≥", "≥": "≤"}[sign]


def _is_name(node: Node) -> bool:
    return node.head in ("sym", "apply") and node.name not in ("pi", "e", "i")


def _is_constant(node: Node) -> bool:
    if node.head in ("sym", "apply"):
        return node.head == "sym" and node.name in ("pi", "e", "i")
    return all(map(_is_constant, node.args))
