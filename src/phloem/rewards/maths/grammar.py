"""The grammar of expressions: normalised text to a `Node`.

School notation: implicit products, mixed numbers (2\\frac{1}{2}, 2 1/2), e-notation (4.5e33), factorials, roots,
logarithms with a base, powers of functions (\\sin^2 x), floor, ceiling, |x|, f(x), sums and products over an index,
derivatives as opaque names. Integrals and limits are not in it: `Unreadable`, and `algebra` hands them to math-verify's
parser.
"""

from __future__ import annotations

import re
from dataclasses import replace

from phloem.rewards.maths.expression import Node, Unreadable, height, number
from phloem.rewards.maths.numerals import read_numeral
from phloem.rewards.maths.scanner import WORD, Scanner

__all__ = ["FUNCTIONS", "MAX_TEXT", "read_expression"]

MAX_TEXT = 2000
MAX_HEIGHT = 150  # of the tree; a chain of 150 factors reaches it

FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "asin": "asin", "acos": "acos", "atan": "atan",
    "arccot": "acot", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "ln": "ln", "log": "log", "lg": "log10",
    "exp": "exp", "sqrt": "sqrt",
}  # fmt: skip
_INVERSES = {"sin": "asin", "cos": "acos", "tan": "atan", "cot": "acot"}
_GREEK_NAMES = """
alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega
Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega hbar ell partial nabla odot mho
"""
_ACCENT_NAMES = "dot ddot dddot hat bar vec tilde overline overrightarrow underline mathbb mathcal widehat"
_GREEK, _ACCENTS = frozenset(_GREEK_NAMES.split()), frozenset(_ACCENT_NAMES.split())
_DIFFERENTIAL = re.compile(
    r"\s*\{\s*(?:d|\\partial)\s*(?:\^\s*\{?\s*(\d)\s*\}?)?\s*([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
    r"\s*\{\s*(?:d|\\partial)\s*([A-Za-z]|\\[A-Za-z]+)\s*(?:\^\s*\{?\s*(\d)\s*\}?)?\s*\}"
)


def read_expression(text: str) -> Node:
    """The tree of a normalised text. Raises Unreadable: not in the grammar, too long or too deep."""
    if len(text) > MAX_TEXT:
        raise Unreadable(f"longer than {MAX_TEXT} characters")
    reader = _Reader(text)
    node = reader.sum()
    if reader.peek():
        reader.fail()
    if height(node) > MAX_HEIGHT:
        raise Unreadable("too many operations in a row")
    return node


class _Reader(Scanner):
    # -- sums and products -------------------------------------------------------------------------------------------

    def sum(self) -> Node:
        with self.deeper():
            terms = [self.signed()]
            while self.peek() in ("+", "-"):
                terms.append(self.signed())
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def signed(self) -> Node:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.peek() == "-"
            self.at += 1
        term = self.product()
        return Node("neg", (term,)) if negative else term

    def product(self) -> Node:
        left = self.factor()
        while True:
            char = self.peek()
            if char == "*" or char == "/":
                self.at += 1
                right = self.signed_factor()
                left = Node("div" if char == "/" else "mul", (left, right))
            elif self.starts_factor(char):
                if (char.isdigit() or char == ".") and self.text[: self.at].rstrip()[-1:] != ")":
                    raise Unreadable("two numbers side by side")
                left = Node("mul", (left, self.factor()))
            else:
                return left

    def signed_factor(self) -> Node:
        if self.peek() == "-":
            self.at += 1
            return Node("neg", (self.signed_factor(),))
        if self.peek() == "+":
            self.at += 1
            return self.signed_factor()
        return self.factor()

    def starts_factor(self, char: str) -> bool:
        if not char:
            return False
        if char == "|":
            return not self.bars
        if char == "\\":
            return self.command() not in ("", "rfloor", "rceil", "rangle", "end", "text") or self.text.startswith(
                "\\{", self.at
            )
        return char.isalnum() or char in "([{.∞"

    def factor(self) -> Node:
        base = self.atom()
        while True:
            char = self.peek()
            if char == "!":
                self.at += 1
                base = Node("fact", (base,))
            elif char == "^":
                self.at += 1
                if self.take("°"):
                    base = Node("deg", (base,))
                    continue
                base = Node("pow", (base, self.exponent()))
            elif char == "°":
                self.at += 1
                base = Node("deg", (base,))
            elif char == "%":
                self.at += 1
                base = Node("percent", (base,))
            else:
                return base

    def exponent(self) -> Node:
        with self.deeper():
            if self.peek() == "-":
                self.at += 1
                return Node("neg", (self.exponent(),))
            self.take("+")
            node = self.atom(mixed=False)
            if self.peek() == "^":
                self.at += 1
                node = Node("pow", (node, self.exponent()))
            return node

    # -- atoms -------------------------------------------------------------------------------------------------------

    def atom(self, mixed: bool = True) -> Node:
        char = self.peek()
        if char.isdigit() or char == ".":
            return read_numeral(self, mixed)
        if char == "{":
            return self.braces()
        if char and char in "([":
            self.at += 1
            node = self.sum()
            self.need(")" if char == "(" else "]")
            return node
        if char == "|":
            self.at += 1
            self.bars += 1
            node = self.sum()
            self.bars -= 1
            self.need("|")
            return Node("abs", (node,))
        if char == "∞":
            self.at += 1
            return Node("inf")
        if char == "\\":
            return self.macro()
        if char.isascii() and char.isalpha():
            return self.letters()
        return self.fail()

    def braces(self) -> Node:
        self.need("{")
        outer_bars, self.bars = self.bars, 0
        node = self.sum()
        self.bars = outer_bars
        self.need("}")
        return node

    def argument(self) -> Node:
        """One argument of \\frac or \\sqrt: a group, or a single digit, letter or macro."""
        char = self.peek()
        if char == "{":
            return self.braces()
        if char.isdigit():
            self.at += 1
            return number(int(char)) if char.isascii() else self.fail()
        return self.atom()

    def macro(self) -> Node:
        name = self.command()
        start, self.at = self.at, self.at + 1 + len(name)
        if name == "frac":
            return self.fraction()
        if name == "sqrt":
            return self.root()
        if name in FUNCTIONS:
            return self.function(name)
        if name == "binom":
            return Node("binom", (self.argument(), self.argument()))
        if name in ("lfloor", "lceil"):
            node = self.sum()
            self.need("\\r" + name[1:])
            return Node(name[1:], (node,))
        if name in ("sum", "prod"):
            return self.series(name)
        if name == "pi":
            return Node("sym", name="pi")
        if name in _GREEK:
            return self.named("\\" + name)
        if name in _ACCENTS:
            self.peek()
            begin = self.at
            self.argument()
            return self.named(f"\\{name}{{{self.text[begin : self.at].strip('{} ')}}}")
        if name in ("angle", "triangle"):
            found = self.match(re.compile(r"\s*[A-Z_0-9{} ]+"))
            return Node("sym", name=f"\\{name} {found.group().strip()}") if found else self.fail()
        self.at = start
        return self.fail()

    def fraction(self) -> Node:
        found = _DIFFERENTIAL.match(self.text, self.at)
        if found and (found.group(1) or "1") == (found.group(4) or "1") and found.group(2).strip():
            self.at = found.end()
            order, what, by, _ = found.groups()
            return Node("sym", name=f"D{order or 1}[{what.replace(' ', '')},{by}]")
        return Node("div", (self.argument(), self.argument()))

    def root(self) -> Node:
        degree = None
        if self.take("["):
            degree = self.sum()
            self.need("]")
        radicand = self.argument()
        return Node("sqrt", (radicand,)) if degree is None else Node("root", (radicand, degree))

    def series(self, head: str) -> Node:
        """\\sum_{k=a}^{b} term, where the term runs to the next + or -."""
        found = self.match(re.compile(r"\s*_\s*\{\s*([A-Za-z])\s*=")) or self.fail()
        index = found.group(1)
        low = self.sum()
        self.need("}")
        self.need("^")
        high = self.exponent()
        return Node(head, (_indexed(self.product(), index), low, high), name=index)

    def function(self, name: str) -> Node:
        head = FUNCTIONS[name]
        base = power = None
        while self.peek() and self.peek() in "_^":
            sign = self.peek()
            self.at += 1
            if sign == "_":
                base = self.exponent()
            else:
                power = self.exponent()
        argument = self.function_argument()
        if power is not None and power == Node("neg", (number(1),)) and head in _INVERSES:
            return Node(_INVERSES[head], (argument,))
        node = Node("log", (argument, base)) if base is not None else Node(head, (argument,))
        return node if power is None else Node("pow", (node, power))

    def function_argument(self) -> Node:
        with self.deeper():
            char = self.peek()
            if char == "-":
                self.at += 1
                return Node("neg", (self.function_argument(),))
            node = self.factor()
            if char == "(" or char == "{":
                return node
            # \sin 2\pi t takes the whole product, but stops before the next function and before a bracket.
            while self.starts_factor(self.peek()) and self.peek() not in "([{|" and self.next_word() not in FUNCTIONS:
                node = Node("mul", (node, self.factor()))
            if self.peek() == "/" and node.head in ("sym", "num", "mul"):
                self.at += 1
                node = Node("div", (node, self.factor()))
            return node

    def next_word(self) -> str:
        if self.peek() == "\\":
            return self.command()
        found = WORD.match(self.text, self.at)
        return found.group() if found else ""

    # -- letters -----------------------------------------------------------------------------------------------------

    def letters(self) -> Node:
        found = WORD.match(self.text, self.at)
        assert found is not None, "called where a letter stands"
        word = found.group()
        if (
            word in ("np", "math", "numpy", "sympy", "sp")
            and self.text[self.at + len(word) : self.at + len(word) + 1] == "."
        ):
            self.at += len(word) + 1
            word = self.next_word()
            if not word:
                return self.fail()
        if word in FUNCTIONS:
            self.at += len(word)
            return self.function(word)
        if word in ("pi", "Pi"):
            self.at += len(word)
            return Node("sym", name="pi")
        if word in ("inf", "infinity", "oo", "Infinity"):
            self.at += len(word)
            return Node("inf")
        if word in _GREEK:
            self.at += len(word)
            return self.named("\\" + word)
        if len(word) > 4:
            raise Unreadable(f"a word, {word[:20]!r}")
        self.at += 1
        return self.named(word[0])

    def named(self, name: str) -> Node:
        """A symbol with its subscript and primes, or an application f(x) of it to a single name or number."""
        while self.peek() and self.peek() in "_'":
            if self.take("'"):
                name += "'"
                continue
            self.at += 1
            name += "_" + self.subscript()
        if name.endswith(("^{'}", "^'")):
            return self.fail()
        if self.text.startswith("^{'", self.at):
            found = self.match(re.compile(r"\^\{('+)\}"))
            name += found.group(1) if found else ""
        elif self.text.startswith("^'", self.at):
            self.at += 2
            name += "'"
        found = self.match(re.compile(r"\s*\(\s*(-?\d+|[A-Za-z]|\\[A-Za-z]+)\s*\)"))
        if found and found.group(1) != name and name not in ("e", "i", "pi"):
            inner = _Reader(found.group(1)).sum()
            return Node("apply", (inner,), name=name)
        if found:
            self.at = found.start()
        return Node("sym", name=name)

    def subscript(self) -> str:
        if self.peek() == "{":
            depth, start = 0, self.at
            while self.at < len(self.text):
                char = self.text[self.at]
                depth += (char == "{") - (char == "}")
                self.at += 1
                if depth == 0:
                    return re.sub(r"\\text|[{}\s]", "", self.text[start : self.at])
            raise Unreadable("a subscript without its closing brace")
        found = self.match(re.compile(r"\d+|[A-Za-z]|\\[A-Za-z]+"))
        return found.group() if found else str(self.fail())


def _indexed(node: Node, index: str) -> Node:
    """A term in which a_{n-k} depends on the index k: the symbol becomes a function of its subscript."""
    base, mark, subscript = node.name.partition("_")
    if node.head == "sym" and mark and index in subscript:
        return Node("apply", (read_expression(subscript),), name=base + "_")
    return replace(node, args=tuple(_indexed(arg, index) for arg in node.args))
