"""A small expression tree.

Why not sympy's own: a sympy tree evaluates while it is built, so 9^(9^9) costs minutes before anyone can look at it,
decimals become binary floats, and letters lose their case in math-verify's reader. A `Node` is inert: it is read in
time linear in the text, and what it is worth is decided later, under limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Node", "Unreadable", "height", "is_foreign", "number", "symbols"]


class Unreadable(ValueError):
    """Text that is not an expression of this grammar."""


@dataclass(frozen=True)
class Node:
    """One operation. `head` is num, sym, inf, add, mul, div, pow, neg, fact, abs, floor, ceil, root, log, binom, deg,
    percent, apply (an unknown function: `name`), sum or prod (term, from, to; `name` is the index), foreign (LaTeX
    kept as text in `name`), or the name of a known function.
    """

    head: str
    args: tuple[Node, ...] = ()
    value: Fraction | None = None
    name: str = ""

    def __str__(self) -> str:
        if self.head == "num":
            return str(self.value)
        if self.head in ("sym", "inf", "foreign"):
            return self.name or "oo"
        shown = self.name if self.head == "apply" else self.head
        return f"{shown}({', '.join(map(str, self.args))})"


def is_foreign(node: Node) -> bool:
    """Whether a part of the tree is LaTeX outside this grammar, kept as text (head foreign)."""
    return node.head == "foreign" or any(map(is_foreign, node.args))


def symbols(node: Node) -> set[str]:
    """Names of the free symbols, without the constants pi, e and i. f(x) counts as the name f and what is in x."""
    if node.head == "sym":
        return set() if node.name in ("pi", "e", "i") else {node.name}
    own = {node.name} if node.head in ("apply", "foreign") else set()
    found = own.union(*map(symbols, node.args))
    return found - {node.name} if node.head in ("sum", "prod") else found


def number(value: Fraction | int) -> Node:
    return Node("num", value=Fraction(value))


def height(node: Node) -> int:
    height, level = 0, [node]
    while level:
        height, level = height + 1, [arg for parent in level for arg in parent.args]
    return height
