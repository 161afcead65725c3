"""Maths answers: `verify(completion=..., answer=...)` says whether a completion's final answer is the gold answer.

Right in both directions, quick, and safe from any thread: numbers, fractions, lists, intervals and text are judged at
once by exact arithmetic; expressions go to worker processes with a time and memory limit. The rules are written down in
docs/rewards-math.md.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Iterator, Sequence
from functools import lru_cache

from phloem.rewards.maths.extract import Extraction, extract
from phloem.rewards.maths.judge import Judgement, judge, read_gold
from phloem.rewards.maths.leaves import FOREIGN
from phloem.rewards.maths.scalars import GoldUnusable, NeedsAlgebra
from phloem.rewards.runner import Crash, Outcome, Result, Runner, Timeout
from phloem.rewards.verdict import Verdict

__all__ = ["check_gold", "close", "verify", "verify_many"]

SECONDS = 1.0
"""Wall clock for one comparison in a worker; the whole verdict stays under two seconds."""
MEMORY_MB = 1024
_EXTRACT_LIMIT = 1_000_000  # characters of a completion, the last of which are read

_pools: dict[bool, Runner] = {}
_pool_lock = threading.Lock()


def verify(*, completion: str, answer: str) -> Verdict:
    """The verdict on one completion.

    answer: the gold answer, with or without math delimiters; numbers are taken as their text.

    RIGHT pays 1, WRONG and NO_ANSWER 0. BAD_GOLD (a gold answer that cannot be read or evaluated) is not scored. A
    TIMEOUT or FAULT scores 0, unless the gold answer alone or the machine causes it: then it is not scored.

    >>> verify(completion="So it is $\\\\boxed{\\\\frac{6}{8}}$.", answer="0.75").reward
    1.0
    """
    return verify_many([completion], [answer])[0]


def verify_many(completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
    """One verdict per completion, in order; the work is spread over the worker processes.

    Raises ValueError when the two sequences differ in length, TypeError for a completion that is not text.
    """
    if len(completions) != len(answers):
        raise ValueError(
            f"{len(completions)} completions but {len(answers)} answers: one answer per completion, please"
        )
    verdicts: list[Verdict | None] = []
    pending: dict[tuple[str, str], list[int]] = {}
    extractions: list[Extraction] = []
    for index, (completion, answer) in enumerate(zip(completions, answers, strict=True)):
        if not isinstance(completion, str):
            raise TypeError(f"completion {index} is a {type(completion).__name__}; give the text the policy wrote")
        gold = "" if answer is None else str(answer)
        found, verdict = _at_once(completion, gold)
        extractions.append(found)
        verdicts.append(verdict)
        if verdict is None:
            assert found.text is not None
            pending.setdefault((gold, found.text), []).append(index)
    if pending:
        for pair, outcome in _outcomes(list(pending)):
            for index in pending[pair]:
                verdicts[index] = _from_outcome(pair[0], extractions[index], outcome)
    finished = [verdict for verdict in verdicts if verdict is not None]
    if len(finished) != len(completions):
        raise RuntimeError(f"{len(finished)} verdicts for {len(completions)} completions")
    return finished


def check_gold(answer: str) -> Verdict:
    """A gold answer against itself: RIGHT, or BAD_GOLD with the reason."""
    return verify(completion=f"\\boxed{{{answer}}}", answer=answer)


def close() -> None:
    """End the worker processes; the next call starts new ones."""
    with _pool_lock:
        for pool in _pools.values():
            pool.close()
        _pools.clear()


def _workers(answer: str) -> Runner:
    """The pool for a gold answer: the one that has sympy loaded only for golds with a sum, an integral or a limit."""
    symbolic = any(macro in answer for macro in FOREIGN)
    with _pool_lock:
        if symbolic not in _pools:
            extra = ["math_verify.parser"] if symbolic else []
            _pools[symbolic] = Runner(
                "phloem.rewards.maths.judge:judge_with_algebra",
                seconds=SECONDS,
                memory_mb=MEMORY_MB,
                warm=["phloem.rewards.maths.algebra", *extra],
            )
        return _pools[symbolic]


def _outcomes(pairs: list[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], Outcome]]:
    """Each (gold, answer) pair with what its worker said."""
    by_pool: dict[Runner, list[tuple[str, str]]] = {}
    for pair in pairs:
        by_pool.setdefault(_workers(pair[0]), []).append(pair)
    for pool, mine in by_pool.items():
        yield from zip(mine, pool.map(mine), strict=True)


def _at_once(completion: str, answer: str) -> tuple[Extraction, Verdict | None]:
    """The verdict by exact arithmetic alone; None when it takes a worker."""
    try:
        read_gold(answer)
    except GoldUnusable as error:
        return Extraction(None, ""), Verdict.bad_gold(str(error), gold=answer)
    found = Extraction(None, "")
    try:
        found = extract(completion[-_EXTRACT_LIMIT:])
        if found.text is None:
            return found, Verdict.no_answer(found.why, gold=answer)
        return found, _from_judgement(found, judge(answer, found.text))
    except GoldUnusable as error:
        return found, Verdict.bad_gold(str(error), extracted=found.text, gold=answer)
    except NeedsAlgebra:
        return found, None
    except Exception as error:  # a fault of ours that this completion found: nobody gains by finding one
        trace = "".join(traceback.format_exception(error))[-2000:]
        return found, Verdict.fault(trace, by_completion=True, extracted=found.text, gold=answer)


def _from_judgement(found: Extraction, judgement: Judgement) -> Verdict:
    detail = f"{found.why}; {judgement.detail}" if judgement.detail else found.why
    make = Verdict.right if judgement.same else Verdict.wrong
    return make(_shortened(found.text), parsed=judgement.parsed, gold=judgement.gold, detail=detail)


def _from_outcome(answer: str, found: Extraction, outcome: Outcome) -> Verdict:
    extracted = _shortened(found.text)
    if isinstance(outcome, Result):
        fault = outcome.value.gold_fault
        if fault:
            return Verdict.bad_gold(fault, extracted=extracted, gold=answer)
        return _from_judgement(found, outcome.value)
    infrastructure = isinstance(outcome, Crash) and outcome.infrastructure
    by_gold = not infrastructure and _gold_alone_fails(answer)
    blame = {"by_completion": not infrastructure and not by_gold, "extracted": extracted, "gold": answer}
    cause = "the gold answer alone does so too" if by_gold else ""
    if isinstance(outcome, Timeout):
        return Verdict.timeout(f"no verdict within {outcome.seconds} s; {cause}".rstrip("; "), **blame)
    return Verdict.fault(f"{outcome.detail}; {cause}".rstrip("; "), **blame)


@lru_cache(maxsize=1024)
def _gold_alone_fails(answer: str) -> bool:
    """Whether evaluating the gold answer by itself times out or crashes."""
    return not isinstance(_workers(answer).call(answer, f"0+{answer}"), Result)


def _shortened(text: str | None) -> str | None:
    return text if text is None or len(text) <= 500 else f"{text[:250]} ... {text[-250:]}"


def _after_fork() -> None:
    """A lock that another thread held when the process was forked would never be released in the child."""
    global _pool_lock
    _pool_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
