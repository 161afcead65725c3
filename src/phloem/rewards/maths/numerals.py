"""Numerals: 45,300 and 2.5e-3, decimals that repeat, mixed numbers (2\\frac{1}{2}, 2 1/2)."""

from __future__ import annotations

import re
from fractions import Fraction

from phloem.rewards.maths.expression import Node, Unreadable, number
from phloem.rewards.maths.scanner import Scanner

__all__ = ["read_numeral"]

MAX_EXPONENT = 2000  # of e-notation: beyond it a literal is not expanded (Python prints at most 4300 digits)

_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?")
_REPEATING = re.compile(r"\s*\\(?:overline|bar|dot)\s*\{\s*(\d{1,30})\s*\}")
_ELLIPSIS = re.compile(r"\s*…")
_MIXED = re.compile(r"\s*\\frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))(?!\s*[\^!])")
_MIXED_PLAIN = re.compile(r"\s+(\d+)\s*/\s*(\d+)(?![\d.]|\s*[\^!/])")


def read_numeral(text: Scanner, mixed: bool) -> Node:
    """The number that comes next in the text, exactly.

    Args:
        text: at a digit or a point; moved past the numeral.
        mixed: whether a whole number takes in a proper fraction that follows it.

    Raises:
        Unreadable: no number, one that breaks off (0.12...), or one too large to write out.
    """
    start, found = text.at, text.match(_NUMBER)
    if found is None:
        return text.fail()
    literal = found.group().replace(",", "")
    if re.search("[eE][-+]", literal) and found.group() != text.text.strip(" -+"):  # 2e-1 in a formula is 2e - 1
        literal = re.split("[eE]", literal)[0]
        text.at = start + found.group().lower().index("e")
    if "." in literal and "e" not in literal.lower() and (repeating := text.match(_REPEATING)):
        return number(_with_period(literal, repeating.group(1)))
    if "." in literal and text.match(_ELLIPSIS):  # 0.333...: the last digit goes on
        if len(literal) < 4 or literal[-3:] != 3 * literal[-1]:
            raise Unreadable("a decimal that breaks off")
        return number(_with_period(literal, literal[-1]))
    exponent = literal.lower().partition("e")[2]
    if exponent and (len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT):
        raise Unreadable("a number too large to write out")
    value = _decimal(literal)
    return number(value + _proper_fraction(text) if mixed and literal.isdigit() else value)


def _decimal(literal: str) -> Fraction:
    return Fraction(literal + "0" if literal[-1] == "." else literal)


def _with_period(literal: str, period: str) -> Fraction:
    """A decimal with the digits that follow it for ever."""
    places = len(literal.partition(".")[2])
    return _decimal(literal) + Fraction(int(period), 10**places * (10 ** len(period) - 1))


def _proper_fraction(text: Scanner) -> Fraction:
    """The proper fraction that comes next, taken; 0 if none does."""
    found = _MIXED.match(text.text, text.at) or _MIXED_PLAIN.match(text.text, text.at)
    if found is None:
        return Fraction(0)
    top, bottom = (int(group) for group in found.groups() if group is not None)
    if not 0 < top < bottom:
        return Fraction(0)
    text.at = found.end()
    return Fraction(top, bottom)
