"""The kinds of answer. Plain data; `reader` makes them and `compare` compares them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from phloem.rewards.maths.expression import Node
from phloem.rewards.maths.units import Unit

__all__ = [
    "Based", "Clock", "Inequality", "Matrix", "Named", "Piece", "Ratio", "RealSet", "Relation", "Scalar", "Sequence",
    "Text", "Value",
]  # fmt: skip


@dataclass(frozen=True)
class Value:
    """An answer of some kind."""


@dataclass(frozen=True)
class Scalar(Value):
    """One expression. `place` is the worth of the last written digit of a decimal (None: not a decimal literal),
    `digits` its number of significant digits; `bare` the expression without a trailing letter that may be a unit."""

    node: Node
    unit: Unit | None = None
    percent: bool = False
    place: Fraction | None = None
    digits: int = 0
    bare: Node | None = None

    def __str__(self) -> str:
        unit = "" if self.unit is None else f" [{' '.join(sorted(self.unit.words)) or self.unit.kind}]"
        return f"{self.node}{'%' if self.percent else ''}{unit}"


@dataclass(frozen=True)
class Text(Value):
    """Words, in lower case without articles and punctuation."""

    words: str

    def __str__(self) -> str:
        return f"text {self.words!r}"


@dataclass(frozen=True)
class Sequence(Value):
    """`kind`: list (order free, all required), or (alternatives; like a list), set (order and repeats free), tuple
    (ordered; may also be an interval, then `left` and `right` are its brackets)."""

    kind: str
    items: tuple[Value, ...]
    left: str = ""
    right: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.left or '<'}{', '.join(map(str, self.items))}{self.right or '>'}"


@dataclass(frozen=True)
class Piece:
    """An interval of the real line; a single point has equal, closed ends."""

    low: Node
    high: Node
    low_closed: bool
    high_closed: bool

    def __str__(self) -> str:
        return f"{'[' if self.low_closed else '('}{self.low}, {self.high}{']' if self.high_closed else ')'}"


@dataclass(frozen=True)
class RealSet(Value):
    """A union of pieces; `variable` is the name the inequality was about, if one was."""

    pieces: tuple[Piece, ...]
    variable: str = ""

    def __str__(self) -> str:
        return " ∪ ".join(map(str, self.pieces)) or "∅"


@dataclass(frozen=True)
class Relation(Value):
    """An equation between two expressions that does not just name a value."""

    left: Node
    right: Node

    def __str__(self) -> str:
        return f"{self.left} = {self.right}"


@dataclass(frozen=True)
class Named(Value):
    """`name` = value. `claims` are the equalities a chain a = b = c asserts: (node, node, approximately)."""

    name: str
    value: Value
    relation: Relation | None = None
    bound: str = ""
    claims: tuple[tuple[Node, Node, bool], ...] = ()

    def __str__(self) -> str:
        return f"{self.name or '_'} = {self.value}"


@dataclass(frozen=True)
class Inequality(Value):
    """left op right, where op is < or ≤ and the two sides are not one name and constants."""

    left: Node
    right: Node
    op: str

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


@dataclass(frozen=True)
class Matrix(Value):
    rows: tuple[tuple[Node, ...], ...]

    def __str__(self) -> str:
        return "[" + "; ".join(", ".join(map(str, row)) for row in self.rows) + "]"


@dataclass(frozen=True)
class Ratio(Value):
    items: tuple[Node, ...]

    def __str__(self) -> str:
        return " : ".join(map(str, self.items))


@dataclass(frozen=True)
class Clock(Value):
    """Seconds after midnight; `half` is am, pm or empty. `ratio` is the other reading of the same text."""

    seconds: int
    half: str
    ratio: Ratio

    def __str__(self) -> str:
        return f"{self.seconds // 3600}:{self.seconds // 60 % 60:02d}:{self.seconds % 60:02d}{self.half}"


@dataclass(frozen=True)
class Based(Value):
    """A number written in a base, digits as text."""

    digits: str
    base: int

    @property
    def number(self) -> int:
        sign = -1 if self.digits.startswith("-") else 1
        return sign * int(self.digits.lstrip("-"), self.base)

    def __str__(self) -> str:
        return f"{self.digits}_{self.base}"
