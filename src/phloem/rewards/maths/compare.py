"""When a gold answer and an answer are the same.

Called without an algebra, `same` raises NeedsAlgebra as soon as exact arithmetic does not settle the matter, and the
caller asks again in a worker process. The rules are written down in docs/rewards-math.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Items
from dataclasses import replace
from fractions import Fraction
from typing import Any

from phloem.rewards.maths.exact import NotRational, TooLarge, rational
from phloem.rewards.maths.expression import Node, number, symbols
from phloem.rewards.maths.scalars import Algebra, GoldUnusable, NeedsAlgebra, Scalars
from phloem.rewards.maths.sets import INFINITY, as_real_set
from phloem.rewards.maths.values import (
    Based,
    Clock,
    Inequality,
    Matrix,
    Named,
    Piece,
    Ratio,
    RealSet,
    Relation,
    Scalar,
    Sequence,
    Text,
    Value,
)

__all__ = ["Algebra", "GoldUnusable", "NeedsAlgebra", "same"]


def same(gold: Value, answer: Value, algebra: Algebra | None = None) -> bool:
    """Whether the answer is the gold. Raises NeedsAlgebra (without an algebra) and GoldUnusable."""
    return _Comparison(algebra).same(gold, answer)


class _Comparison:
    def __init__(self, algebra: Algebra | None) -> None:
        self.algebra, self.numbers = algebra, Scalars(algebra)

    def same(self, gold: Value, answer: Value) -> bool:
        if isinstance(answer, Named) and not all(map(self.numbers.claim_holds, answer.claims)):
            return False
        if isinstance(gold, Named | Relation) or isinstance(answer, Named | Relation):
            return self.equations(gold, answer)
        if isinstance(answer, Sequence) and answer.kind == "or" and not isinstance(gold, Sequence | RealSet):
            return all(self.same(gold, item) for item in answer.items)
        if isinstance(gold, Sequence | RealSet) or isinstance(answer, Sequence | RealSet):
            return self.collections(gold, answer)
        if isinstance(gold, Based) or isinstance(answer, Based):
            return self.based(gold, answer)
        if isinstance(gold, Ratio | Clock) or isinstance(answer, Ratio | Clock):
            return self.ratios(gold, answer)
        if isinstance(gold, Scalar) and isinstance(answer, Scalar):
            return self.numbers.same(gold, answer)
        if isinstance(gold, Matrix) and isinstance(answer, Matrix):
            return self.matrices(gold, answer)
        if isinstance(gold, Inequality) and isinstance(answer, Inequality):
            return gold.op == answer.op and self.ratio(gold, answer) == 1
        return isinstance(gold, Text) and gold == answer

    # -- equations ---------------------------------------------------------------------------------------------------

    def equations(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Named) and isinstance(answer, Named):
            if gold.name and answer.name and not _same_name(gold.name, answer.name):
                return self.relations(gold.relation, answer.relation)
            value = answer.value
            if gold.bound and answer.bound and gold.bound != answer.bound and isinstance(value, Scalar):
                value = replace(value, node=_renamed(value.node, answer.bound, gold.bound))
            return self.same(gold.value, value) or self.relations(gold.relation, answer.relation)
        if isinstance(gold, Named):
            if isinstance(answer, Relation):
                return self.relations(gold.relation, answer)
            return self.same(gold.value, answer)
        if isinstance(gold, Relation):
            return self.relations(gold, answer.relation if isinstance(answer, Named) else answer)
        return isinstance(answer, Named) and self.same(gold, answer.value)

    def relations(self, gold: Value | None, answer: Value | None) -> bool:
        if not isinstance(gold, Relation) or not isinstance(answer, Relation):
            return False
        if gold == answer:
            return True
        return self.ratio(gold, answer) != 0

    def ratio(self, gold: Relation | Inequality, answer: Relation | Inequality) -> int:
        if self.algebra is None:
            raise NeedsAlgebra
        return self.algebra.ratio_sign(_difference(gold.left, gold.right), _difference(answer.left, answer.right))

    # -- collections -------------------------------------------------------------------------------------------------

    def collections(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, RealSet) or isinstance(answer, RealSet):
            return self.real_sets(gold, answer)
        if isinstance(gold, Matrix) or isinstance(answer, Matrix):
            return self.vectors(gold, answer)
        if not isinstance(gold, Sequence) or not isinstance(answer, Sequence):
            one, other = (gold, answer) if isinstance(gold, Sequence) else (answer, gold)
            assert isinstance(one, Sequence)
            single = one.kind == "set" and len(one.items) == 1
            return single and (self.same(one.items[0], other) if one is gold else self.same(other, one.items[0]))
        if "tuple" not in (gold.kind, answer.kind):
            return self.unordered(gold, answer)
        if "set" in (gold.kind, answer.kind) or len(gold.items) != len(answer.items):
            return False
        if gold.kind == answer.kind == "tuple" and len(gold.items) == 2:
            if (gold.left, gold.right) != (answer.left, answer.right):
                return False
        elif "[" in (gold.left, answer.left) and len(gold.items) == 2:
            return False  # a closed interval against a list
        return all(map(self.same, gold.items, answer.items))

    def unordered(self, gold: Sequence, answer: Sequence) -> bool:
        ours, theirs = list(gold.items), list(answer.items)
        if "set" in (gold.kind, answer.kind):
            ours, theirs = self.distinct(ours), self.distinct(theirs)
        if len(ours) != len(theirs):
            return False
        if Text("…") in ours or Text("…") in theirs:
            return all(map(self.same, ours, theirs))
        for item in ours:
            at = next((at for at, other in enumerate(theirs) if self.same(item, other)), None)
            if at is None:
                return False
            del theirs[at]
        return True

    def distinct(self, items: Items[Value]) -> list[Value]:
        kept: list[Value] = []
        for item in items:
            if not any(self.same(item, other) for other in kept):
                kept.append(item)
        return kept

    def matrices(self, gold: Matrix, answer: Matrix) -> bool:
        if [len(row) for row in gold.rows] != [len(row) for row in answer.rows]:
            return False
        pairs = [(g, a) for ours, theirs in zip(gold.rows, answer.rows, strict=True)
                 for g, a in zip(ours, theirs, strict=True)]  # fmt: skip
        return all(self.numbers.equal_nodes(g, a) for g, a in pairs)

    def vectors(self, gold: Value, answer: Value) -> bool:
        """A column vector against a tuple in round brackets."""
        matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
        if (
            not isinstance(matrix, Matrix)
            or not isinstance(other, Sequence)
            or other.kind != "tuple"
            or other.left != "("
        ):
            return False
        if any(len(row) != 1 for row in matrix.rows) or len(matrix.rows) != len(other.items):
            return False
        column = [Scalar(row[0]) for row in matrix.rows]
        ours, theirs = (column, other.items) if matrix is gold else (other.items, column)
        return all(map(self.same, ours, theirs))

    def real_sets(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Inequality) or isinstance(answer, Inequality):
            one, other = (_as_inequality(v) if isinstance(v, RealSet) else v for v in (gold, answer))
            return isinstance(one, Inequality) and isinstance(other, Inequality) and self.same(one, other)
        ours, theirs = as_real_set(gold), as_real_set(answer)
        if ours is None or theirs is None:
            return False
        if ours.variable and theirs.variable and not _same_name(ours.variable, theirs.variable):
            return False
        one, other = self.ordered(ours.pieces), self.ordered(theirs.pieces)
        return len(one) == len(other) and all(
            (g.low_closed, g.high_closed) == (a.low_closed, a.high_closed)
            and self.numbers.equal_nodes(g.low, a.low)
            and self.numbers.equal_nodes(g.high, a.high)
            for g, a in zip(one, other, strict=True)
        )

    def ordered(self, pieces: Items[Piece]) -> list[Piece]:
        """Pieces from left to right, empty ones dropped, touching ones merged. Symbolic ends keep the given order."""
        keyed = [(self.place(piece.low), self.place(piece.high), piece) for piece in pieces]
        if any(low is None or high is None for low, high, _ in keyed):
            return list(pieces)
        if not all(isinstance(end, Fraction | float) for low, high, _ in keyed for end in (low, high)):
            keyed = [(self.measure(piece.low), self.measure(piece.high), piece) for piece in pieces]
        keyed = [k for k in keyed if k[0] < k[1] or (k[0] == k[1] and k[2].low_closed and k[2].high_closed)]
        keyed.sort(key=lambda k: (k[0], not k[2].low_closed, k[1]))
        merged: list[tuple[Any, Any, Piece]] = []
        for low, high, piece in keyed:
            if merged and (
                low < merged[-1][1] or (low == merged[-1][1] and (piece.low_closed or merged[-1][2].high_closed))
            ):
                start, end, last = merged[-1]
                if (high, piece.high_closed) > (end, last.high_closed):
                    merged[-1] = (start, high, replace(last, high=piece.high, high_closed=piece.high_closed))
                continue
            merged.append((low, high, piece))
        return [piece for _, _, piece in merged]

    def place(self, node: Node) -> Any:
        """Where an end stands on the real line: a comparable number, or None for a symbolic end."""
        if node == INFINITY:
            return float("inf")
        if node.head == "neg" and node.args[0] == INFINITY:
            return float("-inf")
        if symbols(node):
            return None
        try:
            return rational(node)
        except (TooLarge, ZeroDivisionError):
            return None
        except NotRational:
            if self.algebra is None:
                raise NeedsAlgebra from None
            return self.algebra.real(node)

    def measure(self, node: Node) -> Any:
        """`place` with rationals in the algebra's own numbers, so that all ends compare."""
        place = self.place(node)
        assert self.algebra is not None
        return self.algebra.real(node) if isinstance(place, Fraction) else place

    # -- bases, ratios, times ----------------------------------------------------------------------------------------

    def based(self, gold: Value, answer: Value) -> bool:
        """52_8 against 52 (the question fixed the base) or 42_{10}; as an answer to 42, by its number."""
        if isinstance(gold, Based) and isinstance(answer, Based):
            return gold.number == answer.number if 10 in (gold.base, answer.base) else gold == answer
        if isinstance(gold, Based):
            if isinstance(answer, Text):
                return answer.words == gold.digits.lower()
            if not gold.digits.lstrip("-").isdigit():
                return False
            return isinstance(answer, Scalar) and self.numbers.nodes(Scalar(number(int(gold.digits))), answer)
        return (
            isinstance(answer, Based)
            and isinstance(gold, Scalar)
            and self.numbers.nodes(gold, Scalar(number(answer.number)))
        )

    def ratios(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Clock) and isinstance(answer, Clock):
            return _same_time(gold, answer)
        ours, theirs = (v.ratio if isinstance(v, Clock) else v for v in (gold, answer))
        if isinstance(ours, Ratio) and isinstance(theirs, Ratio):
            if len(ours.items) != len(theirs.items):
                return False
            if number(0) in ours.items + theirs.items:
                return ours == theirs
            (first, *ours_rest), (other, *theirs_rest) = ours.items, theirs.items
            pairs = zip(ours_rest, theirs_rest, strict=True)
            return all(self.numbers.equal_nodes(Node("mul", (g, other)), Node("mul", (a, first))) for g, a in pairs)
        ratio, scalar = (ours, theirs) if isinstance(ours, Ratio) else (theirs, ours)
        if isinstance(gold, Clock) or isinstance(answer, Clock):
            return False
        if not isinstance(ratio, Ratio) or len(ratio.items) != 2 or not isinstance(scalar, Scalar):
            return False
        quotient = Node("div", ratio.items)
        return (
            self.numbers.equal_nodes(quotient, scalar.node)
            if ratio is ours
            else self.numbers.equal_nodes(scalar.node, quotient)
        )


def _difference(left: Node, right: Node) -> Node:
    return Node("add", (left, Node("neg", (right,))))


def _renamed(node: Node, old: str, new: str) -> Node:
    """The tree with two symbols exchanged, so that a free `new` is not captured."""
    if node.head == "sym" and node.name in (old, new):
        return replace(node, name=new if node.name == old else old)
    return replace(node, args=tuple(_renamed(arg, old, new) for arg in node.args))


def _same_name(one: str, other: str) -> bool:
    """x against x_0 or X_{\\max}: the letter counts, not the index. \\text{Area} agrees with A."""
    one, other = (re.sub(r"\(.*|_.*|[\\{} ']", "", name) for name in (one, other))
    if one == other:
        return True
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    return len(shorter) == 1 and len(longer) > 3 and longer[0].lower() == shorter.lower()


def _same_time(gold: Clock, answer: Clock) -> bool:
    day, noon = 24 * 3600, 12 * 3600

    def moments(clock: Clock) -> set[int]:
        if not clock.half:
            return {clock.seconds % day}
        return {(clock.seconds % noon + (noon if clock.half == "pm" else 0)) % day}

    if bool(gold.half) == bool(answer.half):
        return moments(gold) == moments(answer)
    return gold.seconds == answer.seconds or moments(gold) == moments(answer)


def _as_inequality(value: RealSet) -> Inequality | None:
    """A half-line about a named variable as an inequality."""
    if len(value.pieces) != 1 or not value.variable:
        return None
    piece, name = value.pieces[0], Node("sym", name=value.variable)
    if piece.high == INFINITY:
        return Inequality(piece.low, name, "≤" if piece.low_closed else "<")
    if piece.low.head == "neg" and piece.low.args[0] == INFINITY:
        return Inequality(name, piece.high, "≤" if piece.high_closed else "<")
    return None
