"""Random LaTeX-like text: no exception but the documented ones, no long run, and every readable answer equals itself.

PHLOEM_FUZZ_EXAMPLES sets the number of examples per test for a longer run.
"""

from __future__ import annotations

import contextlib
import os
import time

import math_verify.parser  # noqa: F401 - loaded before any clock runs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phloem.rewards.maths.exact import NotRational, TooLarge, rational
from phloem.rewards.maths.expression import Unreadable
from phloem.rewards.maths.extract import extract
from phloem.rewards.maths.grammar import read_expression
from phloem.rewards.maths.judge import judge, judge_with_algebra, read_gold
from phloem.rewards.maths.notation import normalise
from phloem.rewards.maths.reader import read_value
from phloem.rewards.maths.scalars import GoldUnusable, NeedsAlgebra

EXAMPLES = int(os.environ.get("PHLOEM_FUZZ_EXAMPLES", "150"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

FRAGMENTS = """
\\frac \\dfrac \\sqrt \\sqrt[3] \\pi \\sin \\log \\ln \\left( \\right) \\{ \\} \\cup \\infty \\le \\ge \\ne
\\in \\pm \\mp \\cdot \\times \\text{ \\mathrm{ \\boxed{ \\begin{pmatrix} \\end{pmatrix} \\\\ & { } ( ) [ ] |
! ^ _ + - * / = < > , ; : . ' % ° $ \\$ \\( \\) \\[ \\] \\, \\! 0 1 2 7 10 123 1,000 0.5 4.5e33 e i x y n k
f(x) a_{n} \\sum_{k=1}^{n} \\int \\lim \\binom \\lfloor \\rfloor \\ldots \\circ or and not is answer Answer:
#### ** <think> </think> <answer> </answer> wait wrong cm feet hours percent
"""
PIECES = FRAGMENTS.split()
latex = st.lists(st.sampled_from([*PIECES, " ", "\n"]), max_size=25).map("".join)
anything = st.one_of(latex, st.text(max_size=80), st.builds("{0}{1}{0}".format, latex, st.text(max_size=10)))
number_like = st.lists(st.sampled_from("0123456789.,/eE+-%^!() "), max_size=14).map("".join)


def in_time(seconds: float, began: float) -> None:
    """Of this thread's processor time, so that a busy machine does not count."""
    assert time.thread_time() - began < seconds


@fuzz
@given(anything)
def test_extraction_takes_any_text(text: str) -> None:
    began = time.thread_time()
    found = extract(text)
    assert found.why
    assert found.text is None or isinstance(found.text, str)
    in_time(1, began)


@fuzz
@given(st.one_of(latex, number_like, st.text(max_size=40)))
def test_reading_gives_a_value_or_says_why_not(text: str) -> None:
    began = time.thread_time()
    once = normalise(text)
    with contextlib.suppress(Unreadable):
        assert str(read_value(once)) != ""
    in_time(1, began)


@fuzz
@given(number_like)
def test_exact_arithmetic_is_bounded(text: str) -> None:
    began = time.thread_time()
    with contextlib.suppress(Unreadable, NotRational, TooLarge, ZeroDivisionError):
        rational(read_expression(text))
    in_time(1, began)


@fuzz
@given(st.one_of(latex, number_like), st.one_of(latex, number_like))
def test_judging_ends_and_is_reflexive(gold: str, answer: str) -> None:
    try:
        read_gold(gold)
    except GoldUnusable:
        return
    for candidate in (gold, answer):
        began = time.thread_time()
        try:
            judgement = judge(gold, candidate)
        except NeedsAlgebra:
            judgement = judge_with_algebra(gold, candidate)
        except GoldUnusable:
            continue
        in_time(2, began)
        if candidate == gold:
            assert judgement.same
