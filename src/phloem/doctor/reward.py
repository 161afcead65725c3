"""The reward of a task: what golds, a constant answer and nothing at all earn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan
from textwrap import shorten

from phloem.doctor.findings import Finding, fail, ok, some, warn
from phloem.rewards.verdict import Status, Verdict
from phloem.tasks.task import GoldFailure, Task

__all__ = ["of_golds", "of_reward"]

PROBES = 64
"""Prompts on which an empty completion is tried."""
CONSTANT = 0.5
"""A constant answer that earns as much or more is worth a look."""


def of_golds(task: Task) -> Iterator[Finding]:
    """Every gold answer against itself; those that cannot be judged, or earn nothing, row by row."""
    report = task.check()
    bad = len(report.failing) + len(report.unusable)
    if not bad:
        yield ok("golds", f"all {report.total:,} gold answers earn full marks against themselves")
        return
    if report.unusable:
        yield fail(
            "golds",
            f"{len(report.unusable):,} of {report.total:,} gold answers are unusable: their rollouts are never scored",
            "correct or remove these rows, or choose another reward",
            some([_described(failure) for failure in report.unusable]),
        )
    nothing = [failure for failure in report.failing if not (failure.verdict.reward or 0) > 0]
    part = [failure for failure in report.failing if failure not in nothing]
    if nothing:
        yield fail(
            "golds",
            f"{len(nothing):,} of {report.total:,} gold answers earn nothing against themselves: nobody could be right",
            "correct these rows or the reward; task.args.gold_template says how a gold is written as a completion",
            some([_described(failure) for failure in nothing]),
        )
    if part:
        yield warn(
            "golds",
            f"{len(part):,} of {report.total:,} gold answers earn less than 1 against themselves",
            "see whether the reward is meant so",
            some([_described(failure) for failure in part]),
        )


def _described(failure: GoldFailure) -> str:
    verdict = failure.verdict
    reward = "" if verdict.reward is None else f", reward {verdict.reward:g}"
    return f"{failure.id} ({failure.split}): {verdict.status}{reward}{_reason(verdict)}"


def _reason(verdict: Verdict) -> str:
    return f", {shorten(verdict.detail.splitlines()[-1], 160)}" if verdict.detail else ""


def of_reward(task: Task) -> Iterator[Finding]:
    """What is earned without knowing anything."""
    if task.held_out:
        baseline = task.constant_baseline()
        answer = shorten(str(baseline.answer), 60, placeholder=" ...")
        said = f"always answering {answer!r}, the commonest, earns {baseline.reward:.3f} on held-out prompts"
        if isnan(baseline.reward):
            yield fail("reward", f"no held-out prompt scores the commonest answer {answer!r}", "see the golds above")
        elif baseline.reward >= CONSTANT:
            remedy = "compare every figure with it: below it nothing may have been learnt but one answer"
            yield warn("reward", said, remedy)
        else:
            yield ok("reward", said)
    examples = list(task.held_out or task.train)[:PROBES]
    yield _of_nothing(task.score([""] * len(examples), examples))


def _of_nothing(verdicts: Sequence[Verdict]) -> Finding:
    """What an empty completion earns; a policy that answers nothing must not get off better than a wrong one."""
    judged = [verdict for verdict in verdicts if verdict.status is not Status.BAD_GOLD]
    broken = [verdict for verdict in judged if verdict.status in (Status.FAULT, Status.TIMEOUT) and not verdict.scored]
    paid = [verdict for verdict in judged if (verdict.reward or 0) > 0]
    unscored = [verdict for verdict in judged if not verdict.scored]
    tried = f"of {len(judged)} prompts"
    if broken:
        sentence = f"the reward breaks on an empty completion ({len(broken)} {tried}){_reason(broken[0])}"
        return fail("reward", sentence, "let it return 0 where there is no answer; what it breaks on trains nothing")
    if paid:
        most = max(verdict.reward or 0 for verdict in paid)
        sentence = f"an empty completion earns up to {most:g} on {len(paid)} {tried}"
        return warn("reward", sentence, "see whether it should")
    if unscored:
        remedy = "return 0, not None, if a completion without an answer is to be wrong"
        return warn("reward", f"an empty completion is not scored on {len(unscored)} {tried}", remedy)
    return ok("reward", f"an empty completion earns nothing on any {tried}")
