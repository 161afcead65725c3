"""The scorers of reasoning-gym, kept away from answers that they would run as code.

Four scorers of the library call `eval` on the answer and five call sympy's `parse_expr`, which does the same. Answers
reach the former only if they are plain literals (or the gold, or no Python at all), the latter only if they are plain
arithmetic of bounded size; anything else scores 0. The five run in worker processes with a time and memory limit, since
sympy's comparison of two expressions has no bound of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from phloem.rewards.compose import attempt
from phloem.rewards.format import extract_answer
from phloem.rewards.runner import Crash, Runner, Timeout
from phloem.rewards.verdict import Verdict
from phloem.tasks.plain import is_code, is_plain_arithmetic, is_plain_literal

__all__ = ["EVALUATED", "PARSED", "GymReward"]

EVALUATED = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
PARSED = ("countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration")
MAX_CHARACTERS = 20_000
"""A longer answer is not scored by the library: it gets 0."""
SECONDS = 5.0
"""Wall clock for one answer in a worker."""


@dataclass(frozen=True)
class GymReward:
    """A generator's own scorer on the extracted answer; `row` is the generator's entry.

    A scorer that raises or takes too long was made to by the answer: a FAULT or TIMEOUT that scores 0. `args` are the
    generator's arguments, from which a worker makes its own copy of the data set.
    """

    dataset: Any
    generator: str
    args: Mapping[str, Any] = field(default_factory=dict)
    threshold: float | None = None

    def score_batch(
        self, completions: Sequence[str], answers: Sequence[Any], rows: Sequence[Mapping[str, Any]]
    ) -> list[Verdict]:
        offers = [extract_answer(completion) for completion in completions]
        seen = [i for i, offered in enumerate(offers) if offered is not None and self._may_see(offered, answers[i])]
        scores = dict(zip(seen, self._scores([(offers[i], dict(rows[i])) for i in seen]), strict=True))
        return [self._verdict(offers[i], answers[i], scores.get(i)) for i in range(len(completions))]

    def _may_see(self, offered: str, gold: Any) -> bool:
        if len(offered) > MAX_CHARACTERS:
            return False
        if self.generator in EVALUATED:
            return offered == str(gold) or is_plain_literal(offered) or not is_code(offered)
        return self.generator not in PARSED or is_plain_arithmetic(offered)

    def _scores(self, pairs: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
        """For each (answer, entry) the score, or the exception, Timeout or Crash that came instead."""
        if self.generator not in PARSED:
            return [attempt(lambda a=a, e=e: float(self.dataset.score_answer(answer=a, entry=e))) for a, e in pairs]
        args = json.dumps(dict(self.args), sort_keys=True)
        outcomes = _workers().map([(self.generator, args, answer, entry) for answer, entry in pairs]) if pairs else []
        return [outcome if isinstance(outcome, Timeout | Crash) else outcome.value for outcome in outcomes]

    def _verdict(self, offered: str | None, answer: Any, score: Any) -> Verdict:
        gold = None if answer is None else str(answer)
        if offered is None:
            return Verdict.no_answer("no complete <answer> element after the thinking", gold=gold)
        if score is None:
            return Verdict.no_answer("not a plain expression of bounded size", extracted=offered[:200], gold=gold)
        if isinstance(score, Timeout):
            detail = f"the scorer of {self.generator} took more than {score.seconds} s"
            return Verdict.timeout(detail, by_completion=True, extracted=offered, gold=gold)
        if isinstance(score, Crash):
            return Verdict.fault(score.detail, by_completion=not score.infrastructure, extracted=offered, gold=gold)
        if isinstance(score, BaseException):
            detail = f"the scorer of {self.generator} raised {type(score).__name__}: {score}"
            return Verdict.fault(detail, by_completion=True, extracted=offered, gold=gold)
        if self.threshold is not None:
            score = float(score >= self.threshold)
        make = Verdict.right if score >= 1 else Verdict.wrong
        return make(offered, reward=score, gold=gold)


@cache
def _workers() -> Runner:
    return Runner("phloem.tasks.gym_reward:score_entry", seconds=SECONDS, warm=("reasoning_gym", "sympy"))


@cache
def _dataset(generator: str, args: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(generator, size=1, seed=0, **json.loads(args))


def score_entry(generator: str, args: str, answer: str, entry: dict[str, Any]) -> float:
    """What a worker runs: the score of one answer. `args` is the JSON of the generator's arguments."""
    return float(_dataset(generator, args).score_answer(answer=answer, entry=entry))
