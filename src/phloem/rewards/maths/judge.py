"""Gold text and answer text to agreement: the steps both the caller's process and the workers take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from phloem.rewards.maths.compare import same
from phloem.rewards.maths.exact import NotRational, TooLarge, rational
from phloem.rewards.maths.expression import Node, Unreadable, symbols
from phloem.rewards.maths.grammar import MAX_TEXT
from phloem.rewards.maths.notation import TEXT, normalise, squeeze
from phloem.rewards.maths.reader import read_value
from phloem.rewards.maths.scalars import Algebra, GoldUnusable
from phloem.rewards.maths.values import Named, Scalar, Sequence, Text, Value

__all__ = ["Judgement", "judge", "judge_with_algebra", "read_gold"]

_OPTION = re.compile(
    r"^(?:option|choice)\s+\(?(?P<word>[A-Z])\)?[.:]?$"
    r"|^\(?(?P<letter>[A-Z])(?:\)[.:]?|[.:](?=\s))\s*(?P<statement>\S.*)?$",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True)
class Judgement:
    """Whether the two agree, how each was read (the answer: None when unreadable), and a note."""

    same: bool
    gold: str
    parsed: str | None
    detail: str = ""
    gold_fault: str = ""
    """Why the gold answer cannot be evaluated; the judgement then says nothing about the answer."""


@lru_cache(maxsize=4096)
def read_gold(gold: str) -> tuple[Value, str]:
    """A gold answer's value and its squeezed spelling. Raises GoldUnusable with the reason."""
    if len(gold) > MAX_TEXT:
        raise GoldUnusable(f"the gold answer has {len(gold)} characters; at most {MAX_TEXT} are read")
    if len(re.findall(r"(?<!\\)\$", gold)) % 2:
        raise GoldUnusable(f"the gold answer has a $ without its partner: {gold[:80]!r}")
    text = normalise(gold)
    try:
        value = read_value(text, gold=True)
    except (Unreadable, RecursionError) as error:
        raise GoldUnusable(f"the gold answer cannot be read ({error}): {gold[:80]!r}") from error
    if isinstance(value, Named) and any(_plainly_false(a, b) for a, b, about in value.claims if not about):
        raise GoldUnusable(f"the gold answer asserts a false equality: {gold[:80]!r}")
    if isinstance(value, Scalar) and _divides_by_zero(value.node):
        raise GoldUnusable(f"the gold answer divides by zero: {gold[:80]!r}")
    return value, squeeze(text)


def judge(gold: str, answer: str, algebra: Algebra | None = None) -> Judgement:
    """Raises GoldUnusable, and NeedsAlgebra when called without an algebra and exact arithmetic is not enough."""
    value, spelling = read_gold(gold)
    shown = str(value)[:200]
    if len(answer) > MAX_TEXT:
        return Judgement(False, shown, None, f"an answer of {len(answer)} characters; at most {MAX_TEXT} are read")
    text = normalise(answer)
    if squeeze(text).rstrip(".") == spelling.rstrip("."):
        return Judgement(True, shown, shown, "written the same way")
    letter, statement = _option(text)
    if letter and isinstance(value, Scalar) and value.node.head == "sym" and value.node.name == letter:
        return Judgement(True, shown, letter, "the option's letter")
    if _holds_e(value):
        text = re.sub(r"(?<=\d)e(?=[-+]\d)", " e ", text)  # 2e-1 beside a gold with e in it is 2e - 1, not 0.2
    if statement and not any(name.isupper() for name in _names(value)):
        text = statement
    try:
        read = read_value(text)
    except (Unreadable, RecursionError) as error:
        return Judgement(False, shown, None, f"the answer cannot be read: {error}")
    if _same_words(value, spelling, text):
        return Judgement(True, shown, str(read)[:200], "the same words")
    agreed = same(value, read, algebra)
    if not agreed and isinstance(value, Sequence) and re.search(r"\d,\d{3}", text):
        try:
            agreed = same(value, read_value(text, as_list=True), algebra)
        except Unreadable:
            agreed = False
    return Judgement(agreed, shown, str(read)[:200])


def _option(text: str) -> tuple[str, str]:
    """The letter and the rest of "(C) 12", "C. 12", "option C"; empty where the text is something else."""
    found = _OPTION.match(TEXT.sub(r"\1", text).strip())
    return ((found["letter"] or found["word"]).upper(), found["statement"] or "") if found else ("", "")


def _holds_e(value: Value) -> bool:
    def holds(node: Node) -> bool:
        return (node.head == "sym" and node.name == "e") or any(map(holds, node.args))

    return isinstance(value, Scalar) and holds(value.node)


def _names(value: Value) -> set[str]:
    return symbols(value.node) if isinstance(value, Scalar) else set()


def judge_with_algebra(gold: str, answer: str) -> Judgement:
    """`judge` with the algebra of this process; what a worker runs. Raises nothing about the gold: see `gold_fault`."""
    from phloem.rewards.maths import algebra

    try:
        return judge(gold, answer, algebra)
    except GoldUnusable as error:
        return Judgement(False, gold[:200], None, gold_fault=str(error))


def _same_words(gold: Value, spelling: str, answer: str) -> bool:
    """The same word in another case, wherever one of the two was marked as text: "odd", \\text{Odd}."""
    ours, theirs = (re.sub(r"\\text|[{}\s.]", "", text) for text in (spelling, answer))
    if not ours.isalpha() or ours.lower() != theirs.lower():
        return False
    return len(ours) > 2 or isinstance(gold, Text)


def _divides_by_zero(node: Node) -> bool:
    try:
        rational(node)
    except ZeroDivisionError:
        return True
    except (NotRational, TooLarge):
        pass
    return False


def _plainly_false(a: Node, b: Node) -> bool:
    try:
        return rational(a) != rational(b)
    except (NotRational, TooLarge, ZeroDivisionError):
        return False
