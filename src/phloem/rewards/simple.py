"""Rewards that compare short answers: exact text, one number, one letter.

All of them judge `extract_answer(completion)`: the `<answer>` element if there is one, else the text after the
thinking. They score 1 or 0. Several answers at once ("3 or 4") are wrong even if one of them is right, and a gold
answer that cannot be read is not scored.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from phloem.rewards.format import extract_answer
from phloem.rewards.verdict import RewardError, Verdict

__all__ = ["Choice", "Exact", "Number", "parse_number"]

Row = Mapping[str, Any]

MAX_CHARACTERS = 400
"""A longer number is not read, nor one with a larger exponent: its exact value would cost more than it is worth."""
_UNSIGNED = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_RATIO = rf"[-+]?{_UNSIGNED}(?:\s*/\s*{_UNSIGNED})?"
_UNIT = r"(?:\s*%|\s*(?!(?:or|and|not)\b)[A-Za-z]+(?:\s+(?!(?:or|and|not)\b)[A-Za-z]+){0,2})?"
_ONE_NUMBER = re.compile(rf"(?:[A-Za-z]\w{{0,30}}\s*=\s*)?(?P<number>{_RATIO}){_UNIT}\s*\.?")
_IN_TEXT = re.compile(rf"(?<![\w.])(?:(?<![\w)])[-+])?{_UNSIGNED}(?:\s*/\s*{_UNSIGNED})?")


def parse_number(text: str) -> Fraction | None:
    """The exact value of a text that is one number, or None.

    Reads integers, decimals, e-notation, ratios (`3/4`), thousands separators in groups of three, a currency sign, a
    leading `x =` and up to three words of unit or a percent sign, which are ignored.
    """
    text = _plain(text)
    match = _ONE_NUMBER.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    return _value(match["number"]) if match else None


def _plain(text: str) -> str:
    return re.sub(r"[$€£¥]\s*", "", text.replace("\N{MINUS SIGN}", "-")).strip()


def _value(number: str) -> Fraction | None:
    if len(number) > MAX_CHARACTERS:
        return None
    parts = [part.strip().replace(",", "") for part in number.split("/")]
    exponents = [abs(int(exponent)) for exponent in re.findall(r"[eE]([-+]?[0-9]+)", number)]
    if any(exponent > MAX_CHARACTERS for exponent in exponents):
        return None
    values = [Fraction(part) for part in parts]
    if len(values) == 1:
        return values[0]
    return values[0] / values[1] if values[1] else None


def _last_number(text: str) -> tuple[str, Fraction] | None:
    """The last number of a text and how it was written; None if there is none or it is one of several offered."""
    text = _plain(text)
    found = list(_IN_TEXT.finditer(text))
    if not found:
        return None
    if len(found) > 1:
        between = text[found[-2].end() : found[-1].start()]
        if re.search(r"\bor\b", between) and not re.search(r"[.!?\n]", between):
            return None
    value = _value(found[-1].group())
    return None if value is None else (found[-1].group(), value)


@dataclass(frozen=True)
class Number:
    """Reward 1 if the answer is the gold number, compared as exact rationals.

    An `<answer>` element must hold one number (see `parse_number`); in free text the last number counts.
    `relative_tolerance` t also accepts |x - gold| <= t |gold|. A gold answer that is not a number is BAD_GOLD.
    """

    relative_tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.relative_tolerance is not None and not 0 <= self.relative_tolerance < 1:
            raise RewardError(f"relative_tolerance is {self.relative_tolerance}; it must be in [0, 1) or None")

    def __call__(self, completion: str, answer: Any, row: Row | None = None) -> Verdict:
        gold = None if isinstance(answer, bool) else parse_number(str(answer))
        if gold is None:
            return Verdict.bad_gold(f"the gold answer {answer!r} is not a number")
        offered = extract_answer(completion)
        if offered is None:
            return Verdict.no_answer("no complete <answer> element after the thinking", gold=str(gold))
        value = parse_number(offered)
        if value is None and "</answer>" not in completion and (last := _last_number(offered)) is not None:
            offered, value = last
        if value is None:
            return Verdict.no_answer("the answer is not one number", extracted=offered, gold=str(gold))
        bound = Fraction(self.relative_tolerance or 0) * abs(gold)
        make = Verdict.right if abs(value - gold) <= bound else Verdict.wrong
        return make(offered, parsed=str(value), gold=str(gold))


@dataclass(frozen=True)
class Exact:
    """Reward 1 if the answer is the gold text, character by character after Unicode composition (NFC).

    `collapse_spaces` treats every run of white space as one space; `ignore_case` folds case.
    """

    collapse_spaces: bool = True
    ignore_case: bool = False

    def __call__(self, completion: str, answer: Any, row: Row | None = None) -> Verdict:
        gold = "" if answer is None else self._normalise(str(answer))
        if not gold:
            return Verdict.bad_gold("the gold answer is empty")
        offered = extract_answer(completion)
        if not offered:
            return Verdict.no_answer("no answer after the thinking", gold=gold)
        text = self._normalise(offered)
        make = Verdict.right if text == gold else Verdict.wrong
        return make(offered, parsed=text, gold=gold)

    def _normalise(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text).strip()
        if self.collapse_spaces:
            text = " ".join(text.split())
        return text.casefold() if self.ignore_case else text


@dataclass(frozen=True)
class Choice:
    """Reward 1 if the answer names the gold option, and only that one.

    Reads `B`, `(b)`, `B.`, `B) four apples`, `Option B`; in free text what follows the last "answer is" or "answer:".
    An answer that names several options is wrong, whatever the gold is.
    """

    labels: str = "ABCDE"

    def __post_init__(self) -> None:
        if not self.labels or not self.labels.isalnum() or self.labels != self.labels.upper():
            raise RewardError(f"labels is {self.labels!r}; it must be upper-case letters or digits, for example 'ABCD'")

    def __call__(self, completion: str, answer: Any, row: Row | None = None) -> Verdict:
        gold = self._named(str(answer))
        if len(gold) != 1:
            return Verdict.bad_gold(f"the gold answer {answer!r} is not one of the options {', '.join(self.labels)}")
        offered = extract_answer(completion)
        if offered is None:
            return Verdict.no_answer("no complete <answer> element after the thinking", gold=gold[0])
        if "</answer>" not in completion:
            offered = re.split(r"\banswer\s*(?:is|:)", offered, flags=re.IGNORECASE)[-1].strip().partition("\n")[0]
        named = self._named(offered)
        if not named:
            return Verdict.no_answer("names no option", extracted=offered, gold=gold[0])
        make = Verdict.right if named == gold else Verdict.wrong
        return make(offered, parsed=" ".join(named), gold=gold[0])

    def _named(self, text: str) -> list[str]:
        """The options a text names, in the order of `labels`; those it denies are marked with "not"."""
        options = re.escape(self.labels)
        if alone := re.fullmatch(rf"\W*([{options}])\W*", text, flags=re.IGNORECASE):
            return [alone[1].upper()]
        found = set()
        for match in re.finditer(rf"(?<![\w'])([{options}])(?![\w'])", text):
            if match[1] == "A" and re.match(r" +(?!(?:or|and)\b)[a-z]", text[match.end() :]):
                continue  # the article
            denied = re.search(r"\b(?:not|except)\s+\W*$", text[: match.start()], flags=re.IGNORECASE)
            found.add(f"not {match[1]}" if denied else match[1])
        return sorted(found)
