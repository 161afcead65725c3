"""Which part of a completion is its answer. The rules, in order, are in docs/rewards-math.md.

Everything works by finding fixed strings and by patterns that cannot backtrack far, on text of bounded length, so time
is linear in the completion.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from phloem.rewards.maths.phrases import (
    BETWEEN,
    BOUND,
    CONDITION,
    COPULA,
    CORRECTION,
    CUT,
    DENIAL,
    DOUBT,
    MATH,
    NOT_BEFORE,
    NUMBER,
    OR_MORE,
    PHRASE,
    RETRACTION,
    SCRATCHED,
)
from phloem.rewards.maths.units import SCALES

__all__ = ["Extraction", "extract"]

MAX_TAIL = 4000
"""Without a box or a tag the answer is looked for in this many last characters only."""
_THINK = ("think", "thinking", "thought", "reasoning", "scratchpad")
_OPEN_THINK = re.compile(rf"<({'|'.join(_THINK)})>", re.IGNORECASE)
_CLOSE_THINK = re.compile(rf"</({'|'.join(_THINK)})>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?=[\dA-Za-z]))")


@dataclass(frozen=True)
class Extraction:
    """`text` is the answer, None when the completion gives none; `why` says what was found or missing."""

    text: str | None
    why: str


def extract(completion: str) -> Extraction:
    """The final answer of a completion.

    >>> extract("First \\\\boxed{2}. Correcting: \\\\boxed{3}").text
    '3'
    >>> extract("I considered 3. Hence the answer is unknown.").text is None
    True
    """
    body, note = _after_thinking(completion)
    if body is None:
        return Extraction(None, note)
    tagged = _tagged(body)
    boxed = _boxed(body)
    if tagged is not None:
        _, end, inside = tagged
        later_box = boxed is not None and boxed[0] > end
        if not later_box:
            return _inside_tag(inside)
    if boxed is not None:
        return boxed[1]
    if re.search(r"<answer>", body, re.IGNORECASE) and tagged is None:
        return Extraction(None, "an <answer> tag that is not closed")
    return _from_prose(body[-MAX_TAIL:])


def _after_thinking(text: str) -> tuple[str | None, str]:
    closings = list(_CLOSE_THINK.finditer(text))
    start = closings[-1].end() if closings else 0
    if _OPEN_THINK.search(text, start):
        return None, "thinking that is not finished"
    return text[start:], ""


def _tagged(text: str) -> tuple[int, int, str] | None:
    lower = text.lower()
    close = lower.rfind("</answer>")
    if close < 0:
        return None
    start = lower.rfind("<answer>", 0, close)
    later = lower.find("<answer>", close)
    if later >= 0:
        return None  # a newer answer that is not finished
    begin = start + len("<answer>") if start >= 0 else 0
    return begin, close, text[begin:close]


def _inside_tag(inside: str) -> Extraction:
    boxed = _boxed(inside)
    if boxed is not None:
        return boxed[1]
    text = inside.strip()
    if not text:
        return Extraction(None, "an empty <answer>")
    phrased = _phrase(text)
    if phrased is not None:
        return phrased
    if len(text) > 200 or text.count(". ") > 1:
        return _from_prose(text[-MAX_TAIL:])
    if DENIAL.match(text):
        return Extraction(None, "the answer is denied")
    return Extraction(_unwrapped(text), "the <answer> tag")


# -- boxes -----------------------------------------------------------------------------------------------------------


def _boxes(text: str) -> tuple[list[tuple[int, int, str]], bool]:
    """(start, end, content) of the last few complete outer boxes, in order, and whether a box at the end is cut off."""
    found: list[tuple[int, int, str]] = []
    starts = list(_BOX.finditer(text))[-40:]
    end_of_last = -1
    for match in starts:
        if match.start() < end_of_last:
            continue  # a box inside a box
        if not match.group().endswith("{"):
            found.append((match.start(), match.end() + 1, text[match.end()]))
            end_of_last = match.end() + 1
            continue
        end = _closing_brace(text, match.end())
        if end is None:
            return found, True
        found.append((match.start(), end + 1, text[match.end() : end]))
        end_of_last = end + 1
    return found, False


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None


def _boxed(text: str) -> tuple[int, Extraction] | None:
    """Where the last box stands and what it answers; None without a box."""
    boxes, cut_off = _boxes(text)
    if cut_off:
        return len(text), Extraction(None, "a box that is not closed")
    if not boxes:
        return None
    if len(boxes) > 1 and boxes[-1][0] - boxes[-2][1] <= 25 and NOT_BEFORE.search(text[boxes[-2][1] : boxes[-1][0]]):
        boxes.pop()  # "3, not 4"
    start, end, content = boxes[-1]
    if NOT_BEFORE.search(text[max(0, start - 60) : start]):
        return start, Extraction(None, "the box is denied")
    after = text[end : end + 200]
    if RETRACTION.match(after) or SCRATCHED.match(after):
        return start, Extraction(None, "the box is taken back")
    corrected = _phrase_after_correction(text[end:][-MAX_TAIL:])
    if corrected is not None:
        return start, corrected
    group, joiners = [content], []
    for before, box in zip(boxes[-2::-1], boxes[:0:-1], strict=False):
        between = BETWEEN.match(text[before[1] : box[0]]) if box[0] - before[1] <= 60 else None
        if between is None or _sentence_end(text[before[1] : box[0]], between.group(1)):
            break
        group.insert(0, before[2])
        joiners.append((between.group(1) or ",").lower())
    hedge = OR_MORE.match(after)
    if hedge:
        group.append(hedge.group(1))
        joiners.append("or")
    distinct = list(dict.fromkeys(part.strip() for part in group))
    if not any(re.sub(r"[\s?_.]|\\(?:text|quad|,|;)|[{}]", "", part) for part in distinct):
        return start, Extraction(None, "an empty box")
    if len(distinct) == 1:
        return start, Extraction(distinct[0], "the last box")
    glue = " \\text{ or } " if any(j.startswith("or") for j in joiners) else " ; "
    return start, Extraction(glue.join(distinct), "several boxes joined")


def _sentence_end(between: str, joiner: str | None) -> bool:
    """Two boxes with no joining word between them are two answers, the later of which counts."""
    return joiner is None and ("." in between or not between.strip(" $\n*\\)(]["))


def _phrase_after_correction(rest: str) -> Extraction | None:
    """A later "wait, the answer is actually 4" overrules the box."""
    if not CORRECTION.search(rest):
        return None
    found = _phrase(rest)
    return found if found is not None and found.text is not None and re.search(r"\d|\\", found.text) else None


# -- prose -----------------------------------------------------------------------------------------------------------


def _from_prose(text: str) -> Extraction:
    text = re.sub(r"\b(?:minus|negative) (?=\$?\d)", "-", text.strip(), flags=re.IGNORECASE)
    if not text:
        return Extraction(None, "an empty completion")
    marker = text.rfind("####")
    if marker >= 0:
        line = text[marker + 4 :].strip().split("\n", 1)[0].strip()
        return Extraction(_unwrapped(line) or None, "after ####")
    phrased = _phrase(text)
    if phrased is not None:
        return phrased
    if "\n" not in text and len(text) <= 200 and _looks_mathematical(text):
        return Extraction(_unwrapped(text), "the whole completion")
    if (
        re.fullmatch(r"[A-Za-z.'!-]+(?: [A-Za-z.'!-]+){0,2}", text)
        and not DOUBT.search(text)
        and not DENIAL.match(text)
    ):
        return Extraction(_unwrapped(text), "the whole completion, a few words")
    return _last_sentence(text)


def _looks_mathematical(text: str) -> bool:
    words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", text)
    known = {"sqrt", "exp", "sin", "cos", "tan", "log", "pi", "and", "arcsin", "arccos", "arctan", "text", "inf"}
    return all(word in known for word in words) and bool(re.search(r"\d|[=+*/^\\]|^[A-Za-z]$", text))


def _phrase(text: str) -> Extraction | None:
    """What follows the last "the answer is", "Answer:" and the like; None when there is no such phrase."""
    matches = list(PHRASE.finditer(text))
    if not matches:
        denied = re.search(r"\banswer\s+(?:is|was)\s+not\b", text, re.IGNORECASE)
        return Extraction(None, "the answer is denied") if denied else None
    rest = text[matches[-1].end() :].lstrip(" \t*_:")
    if not rest.strip():
        return None
    rest = rest.lstrip("\n ") if rest.startswith("\n") else rest
    if DENIAL.match(rest):
        return Extraction(None, "the answer is denied or unknown")
    return Extraction(_first_statement(rest) or None, "after an answer phrase")


def _first_statement(rest: str) -> str:
    """The answer at the start of a text: a formula with what is joined to it, bold text, or words up to the stop."""
    bold = re.match(r"\*\*([^*\n]+)\*\*", rest)
    if bold:
        return _unwrapped(bold.group(1))
    math = MATH.match(rest)
    if math:
        parts = [rest[math.start() : math.end()]]
        at = math.end()
        while more := re.match(r"\s*(?:,\s*)?(and|or|,)\s*", rest[at : at + 20]):
            following = MATH.match(rest, at + more.end())
            if following is None:
                break
            parts += [f" \\text{{ {more.group(1)} }} " if more.group(1) != "," else " , ", following.group()]
            at = following.end()
        return _unwrapped("".join(parts)) + _unit_after(rest[at : at + 30].split("\n")[0])
    line = rest.split("\n", 1)[0]
    cut = CUT.search(line)
    return _unwrapped(line[: cut.start()] if cut else line)


def _unit_after(text: str) -> str:
    """A percent sign or one or two words that end the sentence, as LaTeX: "$5$ cm." has a unit."""
    found = re.match(r" ?(\\?%|°)| ?([a-z]+(?: [a-z]+)?)[.\s]*$", text)
    if found is None:
        return ""
    return found.group(1) or f"\\text{{ {found.group(2)} }}"


def _last_sentence(text: str) -> Extraction:
    """The last sentence, when it states one number or formula without doubt."""
    lines = [line for line in text.split("\n") if line.strip(" -*#=_.!")]
    if not lines:
        return Extraction(None, "nothing but punctuation")
    block = lines[-1].strip()
    sentences = [s for s in re.split(r"(?<=[.!])\s+(?=[A-Z\\$*])", block) if s.strip()]
    sentence = sentences[-1].strip()
    if DOUBT.search(re.sub(r"\$[^$]*\$", "", sentence)):
        return Extraction(None, "the last sentence is in doubt")
    bold = re.findall(r"\*\*([^*\n]+)\*\*", sentence)
    if bold:
        return Extraction(_unwrapped(bold[-1]), "bold in the last sentence")
    spans = list(MATH.finditer(sentence))
    if spans:
        return Extraction(_unwrapped(spans[-1].group()), "the formula in the last sentence")
    start = re.match(r"^(?:therefore|thus|so|hence)[,:]?\s+", sentence, re.IGNORECASE)
    rest = sentence[start.end() :] if start else sentence
    if _looks_mathematical(rest.rstrip(".")):
        return Extraction(_unwrapped(rest), "the formula in the last sentence")
    numbers = [match.group().strip() for match in NUMBER.finditer(rest)]
    stated = _after_equals(rest)
    if stated is not None:
        return Extraction(stated, "the number after the last equals sign")
    if CONDITION.search(rest):
        return Extraction(None, "the last sentence is conditional")
    if BOUND.search(rest):
        return Extraction(None, "the last sentence compares or bounds")
    copulas = list(COPULA.finditer(rest))
    if copulas:
        tail = re.split(r",\s|;\s|\s\(", rest[copulas[-1].end() :], maxsplit=1)[0]
        found = NUMBER.search(tail)
        if found and len(NUMBER.findall(tail)) == 1 and (found.start() <= 25 or len(numbers) == 1):
            return Extraction(_with_unit(tail[found.start() :]), "the number in the last sentence")
    if len(set(numbers)) == 1:
        return Extraction(numbers[0], "the only number in the last sentence")
    return Extraction(None, "no final answer")


def _after_equals(sentence: str) -> str | None:
    """The number that stands right after the last equals sign of a sentence, with a short unit."""
    _, sign, tail = sentence.rpartition("=")
    found = NUMBER.match(tail.lstrip()) if sign else None
    return _with_unit(tail.lstrip()) if found else None


def _with_unit(text: str) -> str:
    """The number at the start of a text and the words after it, if they are few enough to be its unit."""
    found = NUMBER.match(text)
    assert found is not None
    rest = re.split(r"[,;(]", text[found.end() :], maxsplit=1)[0].rstrip(".!* ")
    words = rest.split()
    is_unit = len(words) <= 2 and ("$" not in found.group() or (words[:1] and words[0] in SCALES))
    return _unwrapped(text[: found.end()] + (rest if is_unit else ""))


def _unwrapped(text: str) -> str:
    text = text.strip()
    while True:
        shorter = text.strip().strip("*_`").rstrip(".,;:").strip()
        label = re.match(r"^\[?(?:final\s+)?answer\s*(?::|is)\s*", shorter, re.IGNORECASE)
        if label:
            shorter = shorter[label.end() :].rstrip("]") if shorter.startswith("[") else shorter[label.end() :]
        if (shorter.startswith("\\[") and shorter.endswith("\\]")) or (
            shorter.startswith("\\(") and shorter.endswith("\\)")
        ):
            shorter = shorter[2:-2]
        elif shorter.startswith("$") and shorter.endswith("$") and len(shorter) > 1:
            shorter = shorter.strip("$")
        elif re.fullmatch(r"\$-?[\d,.]+", shorter):
            shorter = "\\" + shorter  # money
        if shorter == text:
            return text
        text = shorter
