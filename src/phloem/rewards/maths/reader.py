"""From a normalised text to the kind of answer it is: `read_value`."""

from __future__ import annotations

import re

from phloem.rewards.maths.expression import Node, Unreadable, number, symbols
from phloem.rewards.maths.leaves import (
    MAX_ITEMS,
    MAX_WORDS,
    read_based,
    read_colon,
    read_matrix,
    read_scalar,
    read_scalar_or_text,
    read_text,
)
from phloem.rewards.maths.notation import split_top, squeeze, strip_brackets
from phloem.rewards.maths.sets import is_set_text, read_inequality, read_set
from phloem.rewards.maths.values import (
    Named,
    RealSet,
    Relation,
    Scalar,
    Sequence,
    Text,
    Value,
)

__all__ = ["read_value"]

_JOIN = re.compile(r"\\text\{[\s,;]*(and|or)[\s,;]*\}|(?<![A-Za-z\\{])(and|or)(?![A-Za-z}])")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_BASED = re.compile(r"^(-?)(?:\\text\{)?([0-9A-Z]+)\}?_\{?(\d+)\}?$")
_MATRIX = re.compile(r"^\\begin\{([pbvBV]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}$", re.DOTALL)
_LEAD = re.compile(
    r"^(?:=|≈|:|(?:approximately|approx\.?|about|roughly)\b"
    r"|\\text\{\s*(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:?\s*\}|(?:the\s+)?(?:final\s+)?answer\s*(?:is|:))\s*",
    re.IGNORECASE,
)
_NOTHING = {"no solution", "no solutions", "no real solution", "no real solutions", "empty set", "there is no solution",
            "none", "no real roots", "no such number exists"}  # fmt: skip
_SIMPLE_NAME = ("sym", "apply")


def read_value(text: str, *, gold: bool = False, as_list: bool = False) -> Value:
    """What a normalised answer says.

    gold: the text is the reference answer (a lone trailing letter is then a variable, never a unit).
    as_list: read "100,200" as two numbers instead of one with a thousands separator.

    Raises Unreadable.
    """
    text = _tidy(text)
    if not text:
        raise Unreadable("an empty answer")
    if text.lower().strip(" .") in _NOTHING or text == "∅" or squeeze(text) == "\\{\\}":
        return Sequence("set", ())
    whole = re.fullmatch(r"\\text\{([^{}]*)\}", text)
    if whole:
        return _read_words(whole.group(1), gold=gold, as_list=as_list)
    joined, alternatives = _joined(text)
    if not as_list:
        joined = _without_thousands(joined)
    parts = split_top(joined, (",", ";", "\x01"))
    if parts is None:
        raise Unreadable("brackets that do not balance")
    parts = [part.strip() for part in parts if part.strip()]
    if not parts or len(parts) > MAX_ITEMS:
        raise Unreadable(f"{len(parts)} items")
    if len(parts) == 1:
        return _read_item(parts[0], gold)
    items = tuple(item for part in parts for item in _alternatives(part, gold))
    if all(isinstance(item, RealSet) and item.variable for item in items):
        return _combine(items, alternatives)
    wordy = [item for item in items if isinstance(item, Text) and item.words.count(" ") > 1]
    if 0 < len(wordy) < len(items):
        raise Unreadable("mathematics mixed with prose")
    return Sequence("or" if alternatives else "list", items)


def _tidy(text: str) -> str:
    """Without the words, marks, braces and box around an answer."""
    text = text.strip()
    while text and (text[-1] in ".,;:" or _LEAD.match(text)):
        text = _LEAD.sub("", text.rstrip(".,;: ")).strip()
    text = re.sub(r"^(?:minus|negative)\s+(?=\d)", "-", text, flags=re.IGNORECASE)
    text = re.sub(r"^\\(?:boxed|fbox)\s*(?=\{)", "", strip_brackets(text))
    return strip_brackets(text).strip()


def _read_words(words: str, *, gold: bool, as_list: bool) -> Value:
    """The content of a \\text{...} that is the whole answer: a number with a unit, an option, or words."""
    try:
        return read_value(words, gold=gold, as_list=as_list)
    except Unreadable:
        return read_text(words, limit=2 * MAX_WORDS)


def _joined(text: str) -> tuple[str, bool]:
    """The text with "and" and "or" between items as separators, and whether an "or" was among them."""
    alternatives = False

    def separator(match: re.Match[str]) -> str:
        nonlocal alternatives
        alternatives |= (match.group(1) or match.group(2)) == "or"
        return "\x01"

    return _JOIN.sub(separator, text), alternatives


def _without_thousands(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        before = text[: match.start()]
        depth = sum(before.count(c) for c in "([{") - sum(before.count(c) for c in ")]}")
        return match.group() if depth else match.group().replace(",", "")

    return _THOUSANDS.sub(plain, text)


def _combine(items: tuple[Value, ...], alternatives: bool) -> Value:
    """Inequalities about one variable: "x < 1 or x > 3" is a union; "x > 1 and x < 3" stays a list."""
    names = {item.variable for item in items if isinstance(item, RealSet)}
    if not alternatives or len(names) != 1:
        return Sequence("list", items)
    pieces = tuple(piece for item in items if isinstance(item, RealSet) for piece in item.pieces)
    return RealSet(pieces, names.pop())


def _alternatives(text: str, gold: bool) -> tuple[Value, ...]:
    """The one or two values of an item: "1 ± \\sqrt{2}" has two."""
    if "±" not in text:
        return (_read_item(text, gold),)
    upper = text.replace("±", "+").replace("∓", "-")
    lower = text.replace("±", "-").replace("∓", "+")
    return _read_item(upper, gold), _read_item(lower, gold)


# -- one item --------------------------------------------------------------------------------------------------------


def _read_item(text: str, gold: bool) -> Value:
    text = strip_brackets(text.strip())
    matrix = _MATRIX.match(re.sub(r"^[(\[]\s*(\\begin\{array\}.*\\end\{array\})\s*[)\]]$", r"\1", text))
    if matrix and matrix.group(1) not in ("vmatrix", "Vmatrix"):
        return read_matrix(matrix.group(2))
    if "±" in text and "=" not in text and not _is_wrapped(text):
        return Sequence("list", _alternatives(text, gold))
    if any(sign in text for sign in "<>≤≥≠∈") and len(split_top(text, tuple("<>≤≥≠∈")) or ()) > 1:
        return _inequality(text, gold)
    if is_set_text(text):
        return read_set(text)
    if ("=" in text or "≈" in text) and len(split_top(text, ("=", "≈")) or ()) > 1:
        return _equation(text, gold)
    text = re.sub(r"^(\d+) (?:to|\\text\{ ?to ?\}) (\d+)$", r"\1:\2", text)
    if ":" in text:
        return read_colon(text)
    if _is_wrapped(text):
        wrapped = _read_wrapped(text, gold)
        if wrapped is not None:
            return wrapped
    based = _BASED.match(squeeze(text))
    if based and any(c.isdigit() for c in based.group(2)):
        return read_based(*based.groups())
    return read_scalar_or_text(text, gold)


def _inequality(text: str, gold: bool) -> Value:
    if "∈" in text:
        name, _, rest = text.partition("∈")
        value = _read_item(rest, gold)
        return Named(squeeze(name), value)
    return read_inequality(text)


def _is_wrapped(text: str) -> bool:
    return text.startswith(("(", "[", "\\{", "\\langle")) and text.endswith((")", "]", "\\}", "\\rangle"))


def _read_wrapped(text: str, gold: bool) -> Value | None:
    """A set, tuple or interval; None when the outer brackets do not pair with each other or hold one item."""
    braces = text.startswith("\\{")
    if braces != text.endswith("\\}"):
        return None
    left, right = ("\\{", "\\}") if braces else (text[0], text[-1])
    inner = text[2:-2] if braces else text[1:-1]
    if text.startswith("\\langle"):
        left, right, inner = "(", ")", text[len("\\langle") : -len("\\rangle")]
    parts = split_top(_joined(inner)[0], (",", ";", "\x01"))
    if parts is None:
        return None
    parts = [part for part in parts if part.strip()]
    if len(parts) > MAX_ITEMS:
        raise Unreadable(f"{len(parts)} items")
    if braces:
        builder = split_top(inner, ("|", ":"))
        if builder is not None and len(builder) == 2:  # {x | x > 2}, {x ∈ R : x > 2}
            return _read_item(builder[1].strip(), gold)
        return Sequence("set", tuple(item for part in parts for item in _alternatives(part, gold)))
    if len(parts) < 2:
        return None
    if "±" in inner:
        upper, lower = (inner.replace("±", a).replace("∓", b) for a, b in ("+-", "-+"))
        both = [_read_wrapped(f"{left}{half}{right}", gold) for half in (upper, lower)]
        return Sequence("list", tuple(item for item in both if item is not None))
    return Sequence("tuple", tuple(_read_item(part, gold) for part in parts), left, right)


# -- equations -------------------------------------------------------------------------------------------------------


def _is_label(node: Node) -> bool:
    """Whether a left side only names what was asked for: m+n, |AB|, P(A), x^2+y^2; but not 2x or x-3."""
    if node.head == "num":
        return False
    if node.head == "pow":
        return _is_label(node.args[0])
    return node.head in _SIMPLE_NAME or all(map(_is_label, node.args))


def _equation(text: str, gold: bool) -> Value:
    pieces = split_top(text, ("=", "≈")) or []
    ends = [sum(map(len, pieces[: k + 1])) + k for k in range(len(pieces) - 1)]
    parts, signs = [piece.strip() for piece in pieces], [text[end] for end in ends]
    if len(parts) > 8:
        raise Unreadable("an equation of more than eight members")
    if not all(parts):
        raise Unreadable("an equation with an empty side")
    left = _left_side(parts[0])
    if left is None or (left.head in _SIMPLE_NAME and symbols(left)):
        name = squeeze(re.sub(r"\\text\{([^{}]*)\}", r"\1", parts[0]))
        return _named(name, left, parts[1:], signs[1:], gold)
    values = [_as_symbol(_read_item(part, gold)) for part in parts]
    scalars = [value for value in values if isinstance(value, Scalar)]
    if len(scalars) != len(values):
        raise Unreadable("an equation between things that are not expressions")
    if not symbols(left):
        return _chain("", scalars, signs)
    to_zero = left.head == "add" and scalars[-1].node == number(0)  # x + y = 0 is an equation, not a value of x + y
    if all(not symbols(scalar.node) for scalar in scalars[1:]) and _is_label(left) and not to_zero:
        return _chain(squeeze(parts[0]), scalars[1:], signs[1:], Relation(left, scalars[1].node))
    if len(scalars) == 2:
        return Relation(scalars[0].node, scalars[1].node)
    raise Unreadable("a chain of equations with variables")


def _named(name: str, left: Node | None, rest: list[str], signs: list[str], gold: bool) -> Value:
    """name = value, or name = a = b where the last stands."""
    values = [item for part in rest for item in _alternatives(part, gold)]
    if "±" in "".join(rest):
        return Named(name, Sequence("list", tuple(values)))
    if len(values) > 1:
        scalars = [value for value in values if isinstance(value, Scalar)]
        if len(scalars) != len(values):
            raise Unreadable("a chain of equations between things that are not expressions")
        return _chain(name, scalars, signs)
    value = values[0]
    if left is None:
        return Named(name, value)
    bound = left.args[0].name if left.head == "apply" and left.args[0].head == "sym" else ""
    if not isinstance(value, Scalar):
        return Named(name, value, bound=bound)
    relation = Relation(left, value.node)
    if left.head == "sym" and left.name in symbols(value.node):
        return relation
    return Named(name, value, relation, bound)


def _chain(name: str, scalars: list[Scalar], signs: list[str], relation: Relation | None = None) -> Named:
    """a = b = c: the last exact member stands, and every link must hold."""
    worth = [Node("percent", (scalar.node,)) if scalar.percent else scalar.node for scalar in scalars]
    claims = tuple((a, b, sign == "≈") for a, b, sign in zip(worth[:-1], worth[1:], signs, strict=True))
    exact = [scalar for scalar, sign in zip(scalars, ["=", *signs], strict=True) if sign == "="]
    return Named(name, exact[-1], relation, claims=claims)


def _as_symbol(value: Value) -> Value:
    """A side of an equation that is one word, as in MR = SRMC, is a name."""
    return Scalar(Node("sym", name=value.words)) if isinstance(value, Text) and value.words.isalpha() else value


def _left_side(text: str) -> Node | None:
    """The expression on the left, or None for a name in words."""
    try:
        return read_scalar(text, gold=True).node
    except Unreadable:
        if re.fullmatch(r"[A-Za-z\\{}()_|\s,.'\d-]{1,60}", text):
            return None  # a name such as \text{Area} or "Total cost"
        raise
