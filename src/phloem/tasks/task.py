"""What a task is: prompts, gold answers and a reward, with checks that run before any model loads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from phloem.config import HELD_OUT
from phloem.kinds import PhloemError
from phloem.rewards.compose import BatchReward, Reward, score_all
from phloem.rewards.verdict import RewardError, Status, Verdict

__all__ = [
    "Baseline",
    "Example",
    "ExampleTask",
    "GoldFailure",
    "GoldReport",
    "Prompt",
    "Setup",
    "Task",
    "TaskError",
    "prompt_key",
]

Prompt = str | tuple[Mapping[str, str], ...]
"""A user's text, or messages {"role", "content"} for the chat template."""

THOUGHTLESS = "<think>\n</think>\n<answer>{answer}</answer>"
"""How a gold answer is written when it is scored against itself."""


INSTRUCTION = "Think inside <think> tags, then answer inside <answer> tags."


def prompt_key(prompt: Prompt) -> Any:
    """What two prompts share if they are the same: they may differ in white space only."""
    if isinstance(prompt, str):
        return " ".join(prompt.split())
    return tuple((message["role"], " ".join(message["content"].split())) for message in prompt)


class TaskError(PhloemError, ValueError):
    """Data or arguments a task cannot be built from; the message names them and the remedy."""


@dataclass(frozen=True)
class Example:
    """One problem. `demonstrations` are completions in the wanted format, for supervised steps; may be empty."""

    id: str
    prompt: Prompt
    answer: Any
    row: Mapping[str, Any] = field(default_factory=dict)
    demonstrations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setup:
    """What every built-in task can be told: the seed of its training examples, sizes, how the format is asked for.

    `held_out_given` false: nobody asked for `held_out_size`, so a data set may hold out fewer.

    `instruction` is a system message, or the end of the user's (`instruction_role` "user", for chat templates without a
    system role); empty: not asked for.
    """

    seed: int = 0
    train_size: int | None = None
    held_out_size: int = HELD_OUT
    held_out_given: bool = True
    instruction: str = INSTRUCTION
    instruction_role: Literal["system", "user"] = "system"

    def prompt(self, question: str) -> Prompt:
        if not self.instruction:
            return question
        if self.instruction_role == "user":
            return f"{question} {self.instruction}"
        return ({"role": "system", "content": self.instruction}, {"role": "user", "content": question})


@dataclass(frozen=True)
class GoldFailure:
    """A gold answer that does not score 1 against itself. `row` is its place in `split`, from 0."""

    split: str
    row: int
    id: str
    verdict: Verdict

    def __str__(self) -> str:
        reason = f" ({self.verdict.detail.splitlines()[-1]})" if self.verdict.detail else ""
        gold = "" if self.verdict.gold is None else f", gold read as {self.verdict.gold}"
        return f"{self.split} row {self.row} [{self.id}]: {self.verdict.status}{gold}{reason}"


@dataclass(frozen=True)
class GoldReport:
    """Result of `check()`: how many golds were scored against themselves, and which failed.

    `unusable` golds cannot be judged (BAD_GOLD: their rollouts are never scored); `failing` ones were judged and did
    not get full marks. `notes` says what the task left out when it was built.
    """

    total: int
    failing: tuple[GoldFailure, ...] = ()
    unusable: tuple[GoldFailure, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.failing and not self.unusable

    def __str__(self) -> str:
        bad = len(self.failing) + len(self.unusable)
        lines = [f"{self.total - bad} of {self.total} gold answers score 1 against themselves", *self.notes]
        for title, rows in (("failing", self.failing), ("unusable", self.unusable)):
            if rows:
                lines.append(f"{title}: {len(rows)}")
                lines.extend(f"  {row}" for row in rows[:20])
                if len(rows) > 20:
                    lines.append(f"  ... and {len(rows) - 20} more, rows {_places(rows[20:])}")
        return "\n".join(lines)


def _as_text(answer: Any) -> str:
    """An answer as a policy would write it: text as it is, else JSON, with what JSON does not know (dates) as text."""
    if isinstance(answer, str):
        return answer
    try:
        return json.dumps(answer, default=str)
    except (TypeError, ValueError):  # keys of a mapping that are no text, a list that holds itself
        return str(answer)


def _places(rows: Sequence[GoldFailure]) -> str:
    return ", ".join(str(row.row) for row in rows[:30]) + (" ..." if len(rows) > 30 else "")


class Baseline(NamedTuple):
    """What a policy earns that has learnt nothing but the commonest answer."""

    answer: Any
    reward: float


class Task(Protocol):
    """What training and evaluation need of a task."""

    @property
    def name(self) -> str: ...

    @property
    def train(self) -> Sequence[Example]: ...

    @property
    def held_out(self) -> Sequence[Example]: ...

    def score(self, completions: Sequence[str], examples: Sequence[Example]) -> list[Verdict]:
        """One verdict per completion, in order. `completions` hold what the policy wrote, without the prompt."""
        ...

    def check(self) -> GoldReport:
        """Scores every gold answer against itself."""
        ...

    def constant_baseline(self) -> Baseline:
        """The commonest gold answer of the training set, and its mean reward when it is given to every held-out
        prompt."""
        ...


@dataclass(frozen=True)
class ExampleTask:
    """A task whose examples are in memory, scored by one reward.

    `gold_template` writes a gold answer as a completion: `{answer}` is replaced, nothing else. `reference` is the key
    of `row` whose value stands for the answer there (code: the answer holds tests, the reference solves them). `notes`
    are sentences about rows that were left out. `opening` is what the prompt's template already wrote of the completion
    (`<think>`): rewards see it in front of what the policy wrote.
    """

    name: str
    train: Sequence[Example]
    held_out: Sequence[Example]
    reward: Reward | BatchReward
    gold_template: str = THOUGHTLESS
    reference: str | None = None
    notes: tuple[str, ...] = ()
    opening: str = ""

    def __post_init__(self) -> None:
        if not self.train:
            raise TaskError(f"task {self.name}: no training example, so no step could be taken")

    def score(self, completions: Sequence[str], examples: Sequence[Example]) -> list[Verdict]:
        """Raises RewardError: lengths differ, or a reward that is not a finite number or None."""
        answers = [example.answer for example in examples]
        texts = [self.opening + completion for completion in completions]
        try:
            return score_all(self.reward, texts, answers, [example.row for example in examples])
        except RewardError as error:
            if error.index is None:
                raise
            raise RewardError(f"{error} (example {examples[error.index].id})", error.index) from None

    def gold_completion(self, example: Example) -> str:
        """The gold answer as the policy would give it."""
        answer = example.answer if self.reference is None else example.row[self.reference]
        text = self.gold_template.replace("{answer}", _as_text(answer))
        return text.removeprefix(self.opening)

    def check(self) -> GoldReport:
        failing: list[GoldFailure] = []
        unusable: list[GoldFailure] = []
        for split, examples in (("train", self.train), ("held_out", self.held_out)):
            verdicts = self.score([self.gold_completion(example) for example in examples], examples)
            for row, (example, verdict) in enumerate(zip(examples, verdicts, strict=True)):
                if verdict.status is Status.BAD_GOLD:
                    unusable.append(GoldFailure(split, row, example.id, verdict))
                elif verdict.status is not Status.RIGHT:
                    failing.append(GoldFailure(split, row, example.id, verdict))
        return GoldReport(len(self.train) + len(self.held_out), tuple(failing), tuple(unusable), self.notes)

    def constant_baseline(self) -> Baseline:
        if not self.held_out:
            raise TaskError(f"task {self.name}: no held-out example to score a constant answer on")
        completions = Counter(self.gold_completion(example) for example in self.train)
        constant, _ = completions.most_common(1)[0]
        answer = next(example.answer for example in self.train if self.gold_completion(example) == constant)
        rewards = [v.reward for v in self.score([constant] * len(self.held_out), self.held_out) if v.reward is not None]
        return Baseline(answer, sum(rewards) / len(rewards) if rewards else float("nan"))
