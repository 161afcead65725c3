"""Readers of the simplest answers: numbers and expressions with units, words, ratios and times, matrices, bases."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from phloem.rewards.maths.expression import Node, Unreadable, number
from phloem.rewards.maths.grammar import FUNCTIONS, read_expression
from phloem.rewards.maths.notation import split_top, squeeze
from phloem.rewards.maths.units import NUMBER_WORDS, SCALES, bare_letter_units, split_unit
from phloem.rewards.maths.values import Based, Clock, Matrix, Ratio, Scalar, Text, Value

__all__ = [
    "FOREIGN",
    "MAX_ITEMS",
    "MAX_WORDS",
    "read_based",
    "read_colon",
    "read_matrix",
    "read_scalar",
    "read_scalar_or_text",
    "read_text",
]

_LITERAL = re.compile(r"^[-+]?(\d[\d,]*\.?\d*|\.\d+)(?:[eE]([-+]?\d+)|\*10\^\{?\(?([-+]?\d+)\)?\}?)?$")
_SCALED = re.compile(rf"(.*\d)\s*(?:\\text\{{\s*)?({'|'.join(SCALES)})s?\b\s*([^{{}}]*?)\s*\}}?", re.IGNORECASE)
_CLOCK = re.compile(r"^(\d{1,2}):([0-5]\d)(?::([0-5]\d))?\s*(?:\\text\{)?\s*([ap])?\.?\s?(m)?\.?\s*\}?$", re.IGNORECASE)
_WORDS = re.compile(r"^[A-Za-z0-9 .,:'&/\"()?!-]+$")
FOREIGN = ("\\int", "\\lim", "\\oint", "\\gcd", "\\lcm", "\\max", "\\min")
MAX_WORDS = 6
MAX_ITEMS = 64


def read_matrix(body: str) -> Matrix:
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", body.replace("\\hline", "")) if row.strip()]
    cells = tuple(tuple(read_expression(cell.strip()) for cell in row.split("&")) for row in rows)
    if not cells or len({len(row) for row in cells}) != 1 or sum(map(len, cells)) > 4 * MAX_ITEMS:
        raise Unreadable("a matrix with rows of different lengths")
    return Matrix(cells)


def read_based(sign: str, digits: str, base: str) -> Based:
    if not 2 <= int(base[:3]) <= 36:
        raise Unreadable(f"base {base[:3]}")
    try:
        int(digits, int(base))
    except ValueError as error:
        raise Unreadable(f"{digits[:20]} is not a number in base {base}") from error
    return Based(sign + digits.lstrip("0").rjust(1, "0"), int(base))


def read_colon(text: str) -> Value:
    clock = _CLOCK.match(text)
    if clock and int(clock.group(1)) <= 24:
        hours, minutes, seconds, half, _ = clock.groups()
        ratio = Ratio(tuple(number(int(part)) for part in (hours, minutes, seconds) if part is not None))
        return Clock(
            int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0), f"{half.lower()}m" if half else "", ratio
        )
    parts = split_top(text, (":",))
    if parts is None or len(parts) < 2:
        raise Unreadable("a colon that is neither a ratio nor a time")
    try:
        return Ratio(tuple(Node("sym", name="…") if part.strip() == "…" else read_expression(part) for part in parts))
    except Unreadable:
        return read_text(text)


def read_scalar_or_text(text: str, gold: bool) -> Value:
    letters = re.fullmatch(r"[A-Za-z]+", text)
    if letters and text.lower() in NUMBER_WORDS:
        return Scalar(number(NUMBER_WORDS[text.lower()]))
    is_word = letters and text not in FUNCTIONS and (len(text) > 3 or re.search(r"[A-Z][a-z]|[A-Z]{3}", text))
    if is_word and text not in ("infinity", "theta", "alpha", "beta", "lambda", "omega"):
        return read_text(text)
    if text == "…":
        return Text("…")
    try:
        return read_scalar(text, gold)
    except Unreadable:
        if any(macro in text for macro in FOREIGN):
            return Scalar(Node("foreign", name=text))
        return read_text(text)


def read_scalar(text: str, gold: bool) -> Scalar:
    body, unit = split_unit(re.sub(r"^(-?)\\text\{([A-Z])\}$", r"\1\2", text), plain_letters=not gold)
    percent = False
    if unit is not None and unit.words & {"percent", "percentage", "pct"}:
        unit, percent = None, True
    if body.endswith("%"):
        body, percent = body[:-1].strip(), True
    if body.lower() in NUMBER_WORDS:
        return Scalar(number(NUMBER_WORDS[body.lower()]), unit)
    if re.fullmatch(r"\d{1,3}(?: \d{3})+", body):
        body = body.replace(" ", "")
    place, digits = _precision(squeeze(body))
    if percent and place is not None:
        place /= 100
    scaled = _SCALED.fullmatch(text.strip())
    if scaled:
        return _scaled(scaled, gold)
    node = read_expression(re.sub(r"\(\s*\\text\{([A-Z])\}\s*\)", r"\1", body))
    bare = None
    if not gold and unit is None and node.head == "mul" and re.search(r"[\d})]\s+[A-Za-z]$", body):
        letter = node.args[1]
        bare = node.args[0] if letter.head == "sym" and letter.name in bare_letter_units else None
    return Scalar(node, unit, percent, place, digits, bare)


def _scaled(match: re.Match[str], gold: bool) -> Scalar:
    """A count in hundreds, thousands, dozens, ...: "3 million people" is 3,000,000 people."""
    amount, scale, unit = match.groups()
    value = read_scalar(amount if not unit else f"{amount} \\text{{ {unit} }}", gold)
    return replace(value, node=Node("mul", (value.node, number(SCALES[scale.lower()]))), place=None, digits=0)


def _precision(literal: str) -> tuple[Fraction | None, int]:
    """The worth of the last digit and the count of significant digits of a decimal or e-notation literal."""
    found = _LITERAL.match(literal)
    if found is None or len(literal) > 60:
        return None, 0
    mantissa = found.group(1).replace(",", "")
    exponent = int((found.group(2) or found.group(3) or "0")[:6])
    if "." not in mantissa and not (found.group(2) or found.group(3)):
        return None, 0
    if abs(exponent) > 4000 or not (exponent or mantissa.partition(".")[2].strip("0")):
        return None, 0  # 12.0 is a whole number
    places = len(mantissa.partition(".")[2])
    return Fraction(10) ** (exponent - places), len(mantissa.replace(".", "").lstrip("0"))


def read_text(text: str, limit: int = MAX_WORDS) -> Text:
    words = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).strip()
    if not _WORDS.match(words) or not re.search(r"[A-Za-z]{2}|^\(?[A-Za-z]\)?$", words):
        raise Unreadable(f"neither mathematics nor a short text: {text[:60]!r}")
    tokens = re.sub(r"[.,:;\"()?!]", " ", words.lower()).split()
    if len(tokens) > 1:
        tokens = [token for token in tokens if token not in ("the", "a", "an")]
    if not 1 <= len(tokens) <= limit:
        raise Unreadable(f"{len(tokens)} words: prose, not an answer")
    return Text(" ".join(tokens))
