"""Units, money and number words at the end (or start) of a numeric answer.

Two known units of one kind are converted; two of different kinds disagree; a missing unit agrees with any, because the
question fixes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["NUMBER_WORDS", "Unit", "bare_letter_units", "read_unit", "split_unit"]


@dataclass(frozen=True)
class Unit:
    """`kind` is a dimension (length, time, ...) or "other"; one unit is `factor` of the kind's base, raised to `power`.
    A unit that is not in the table keeps its `words`, in the singular."""

    kind: str
    factor: Fraction = Fraction(1)
    power: int = 1
    words: frozenset[str] = frozenset()


_TABLE: dict[str, dict[str, str | int]] = {
    "length": {
        "mm millimeter millimetre": "1/1000", "cm centimeter centimetre": "1/100", "dm decimeter": "1/10",
        "m meter metre": 1, "km kilometer kilometre": 1000, "inch inches in in.": "0.0254",
        "foot feet ft ft.": "0.3048",
        "yard yd": "0.9144", "mile mi": "1609.344",
    },
    "mass": {"mg milligram": "1/1000", "g gram": 1, "kg kilogram": 1000, "lb lbs pound": "453.59237",
             "oz ounce": "28.349523125", "tonne": 1000000},
    "time": {"ms millisecond": "1/1000", "s sec second": 1, "min minute": 60, "h hr hour": 3600, "day": 86400,
             "week": 604800},
    "year": {"month": "1/12", "year yr": 1, "decade": 10},
    "money": {"cent ¢": "1/100", "dollar usd \\$": 1},
    "euro": {"euro eur": 1},
    "volume": {"ml milliliter millilitre": "1/1000", "l liter litre": 1},
    "gallon": {"gallon gal": 1, "quart qt": "1/4", "pint": "1/8", "cup": "1/16"},
    "angle": {"degree deg °": 1},
    "radian": {"radian rad": 1},
}  # fmt: skip
_UNITS = {
    name: Unit(kind, Fraction(factor))
    for kind, members in _TABLE.items()
    for names, factor in members.items()
    for name in names.split()
}
_IRREGULAR = {"feet": "foot", "inches": "inch", "children": "child", "men": "man", "women": "woman", "people": "person"}
_IGNORED = {"of", "the", "total", "altogether", "in", "per", "a", "an", "more", "all", "each", "left"}
bare_letter_units = frozenset(name for name in _UNITS if len(name) == 1 and name.isalpha())

_WORDS_TO_TWENTY = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty"""
NUMBER_WORDS = {word: value for value, word in enumerate(_WORDS_TO_TWENTY.split())}
_TAIL = re.compile(
    r"^(?P<number>.*?[\d)}°%!.a-z])\s*\\text\{(?P<words>[^{}]*)\}\s*(?:\^\s*\{?\s*(?P<power>\d)\s*\}?)?$", re.DOTALL
)
_PLAIN_TAIL = re.compile(
    r"^(?P<number>[-+]?[\d.,/ ]*\d\.?)(?P<gap>\s*)(?P<words>[A-Za-z][A-Za-z./ -]*?)(?:\s*\^\s*\{?(?P<power>\d)\}?)?$"
)
_MAX_WORDS = 4
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_NO_UNIT_WORDS = """maybe perhaps possibly probably not or nor and but if unless except than wrong incorrect no neither
never plus minus times half halves third thirds fourths fifths sixths sevenths eighths ninths tenths hundredths
thousandths factorial squared cubed less below choose over mod"""
_NOT_UNITS = frozenset(_NO_UNIT_WORDS.split())


def split_unit(text: str, *, plain_letters: bool = True) -> tuple[str, Unit | None]:
    """A normalised scalar without its unit, and the unit: "35\\text{ cm}^2" is ("35", cm^2).

    `plain_letters`: also read a unit of one letter that stands outside \\text, as in "5 m" (off where the letter may be
    a variable).
    """
    text = text.strip()
    if text.startswith("\\$"):
        return text[2:].strip(), _UNITS["\\$"]
    if text.startswith(("-\\$", "- \\$")):
        return "-" + text.split("\\$", 1)[1].strip(), _UNITS["\\$"]
    if text.endswith("°") and not re.search(r"sin|cos|tan|cot|sec|csc", text):
        return text[:-1].strip(), _UNITS["°"]
    if text.endswith(("°C", "° C", "°F", "° F")):
        return text[:-1].rstrip("° "), Unit("temperature", words=frozenset({text[-1]}))
    if text.endswith("\\$"):
        return text[:-2].strip(), _UNITS["\\$"]
    suffix = re.match(r"^(\d+)\s*(?:\\text\{)?(?:st|nd|rd|th)\}?$", text)
    if suffix:
        return suffix.group(1), None
    found = _TAIL.match(text)
    if found is None:
        found = _PLAIN_TAIL.match(text)
        if found is None:
            return text, None
        words = found["words"].strip()
        if words[0] in "eE" and len(words) == 1:
            return text, None
        lone = len(words) == 1
        if lone and not (plain_letters and found["gap"] and words in bare_letter_units):
            return text, None
        if not lone and not _is_unit_phrase(words, spaced=bool(found["gap"])):
            return text, None
    unit = read_unit(found["words"], int(found["power"] or 1))
    return (text, None) if unit is None else (found["number"].strip(), unit)


def _is_unit_phrase(words: str, spaced: bool) -> bool:
    """Whether bare words after a number are a unit: "35 cm", "35cm", "72 clips", but not "3xy" or "2 pi"."""
    parts = words.lower().split()
    if parts[0] in ("pi", "sqrt", "sin", "cos", "tan", "ln", "log", "exp", "and", "or", "i", "if"):
        return False
    return parts[0].rstrip(".") in _UNITS or _singular(parts[0]) in _UNITS or (spaced and len(parts[0]) > 2)


def _singular(word: str) -> str:
    word = _IRREGULAR.get(word, word)
    if word in _UNITS or len(word) < 4:
        return word
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def read_unit(text: str, power: int = 1) -> Unit | None:
    """The unit a phrase names: "square inches", "cm", "red apples". None for more than four words or none at all."""
    words = [word for word in re.split(r"[\s,.;:]+", text.replace("\\", "").strip().lower()) if word]
    if not words or len(words) > _MAX_WORDS or any(not re.fullmatch(r"[a-z¢/'-]+\d?", word) for word in words):
        return None
    if text.strip() in _UNITS:
        words = [text.strip()]
    if words[0] in ("square", "sq"):
        words, power = words[1:], 2
    elif words[0] in ("cubic", "cu"):
        words, power = words[1:], 3
    elif words[-1] == "squared":
        words, power = words[:-1], 2
    elif words[-1] == "cubed":
        words, power = words[:-1], 3
    elif words and words[-1][-1:] in "23":
        words[-1], power = words[-1][:-1], int(words[-1][-1])
    if not words or _NOT_UNITS.intersection(words):
        return None
    kept = [_singular(word) for word in words if word not in _IGNORED or len(words) == 1]
    if len(kept) == 1 and kept[0] in _UNITS:
        known = _UNITS[kept[0]]
        return Unit(known.kind, known.factor**power, power)
    return Unit("other", power=power, words=frozenset(kept)) if kept else Unit("other")
