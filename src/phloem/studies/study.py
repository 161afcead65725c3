"""What a study is made of, and the bench it works at: pieces of work that are kept, so that it can be interrupted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Any

from phloem.files import plain, replace_text, to_json, writing
from phloem.kinds import PhloemError
from phloem.studies.intervals import Estimate

__all__ = ["Bench", "Figure", "Finding", "OutOfTime", "Study", "Verdict", "not_run", "rounded", "sided", "write_json"]


class Verdict(StrEnum):
    """What our figures say of a claim."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    UNDECIDED = "undecided"
    """The intervals are too wide, or the seeds too few, for either."""
    NOT_TESTED = "not tested at this size"
    """It needs a bigger model or a GPU, or the study was a quick one."""
    NOT_RUN = "not run yet"
    """It can be tested here; the training runs are missing."""


class OutOfTime(PhloemError):
    """The minutes given to a study are over; what is done is kept, and the same command goes on from there."""


@dataclass(frozen=True)
class Finding:
    """One claim beside what is published, what came out here and what that says.

    Attributes:
        claim: in a sentence.
        published: the paper's figure, or "-" where it gives none.
        ours: our figure with its interval and number of seeds.
        verdict: what ours says of the claim.
        note: what else a reader must know; empty: nothing.
        recipe: the command that would test it at its size; empty where it was tested.
    """

    claim: str
    published: str
    ours: str
    verdict: Verdict
    note: str = ""
    recipe: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture of a study: a file beside its page, with the sentence below it."""

    file: str
    caption: str


@dataclass(frozen=True)
class Study:
    """A question to the papers.

    Attributes:
        name: of the command.
        title: of the page.
        question: what is claimed and how it is tested, as Markdown.
        departures: what differs from the paper and why, as Markdown; empty: nothing.
        budget: what the full study costs.
        measure: does the work piece by piece and returns what was measured, as JSON types.
        judge: findings from what was measured.
        draw: figures from what was measured, as files in a folder.
        tables: numbers for the page as Markdown, from what was measured; None: none.
    """

    name: str
    title: str
    question: str
    departures: str
    budget: str
    measure: Callable[[Bench], dict[str, Any]]
    judge: Callable[[Mapping[str, Any]], list[Finding]]
    draw: Callable[[Mapping[str, Any], Path], list[Figure]]
    tables: Callable[[Mapping[str, Any]], str] | None = None


@dataclass
class Bench:
    """Where a study works.

    Attributes:
        work: folder of what can be made again: pieces, training runs, checkpoints.
        quick: a cut-down study that shows that everything runs.
        minutes: no piece is begun after this long; None: no bound.
        trains: whether runs of the matrix that are missing may be trained.
        say: takes a line for the reader.
    """

    work: Path
    quick: bool = False
    minutes: float | None = None
    trains: bool = True
    say: Callable[[str], None] = print
    started: float = field(default_factory=perf_counter)

    @property
    def time_is_over(self) -> bool:
        return self.minutes is not None and perf_counter() - self.started >= 60 * self.minutes

    def piece(self, name: str, settings: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """What `compute` returns, from disk if it was computed with the same settings before.

        Raises:
            OutOfTime: it would have to be computed now, and the minutes are over.
        """
        asked = json.dumps(rounded(settings), sort_keys=True)
        digest = hashlib.blake2b(asked.encode(), digest_size=6).hexdigest()
        path = self.work / "pieces" / f"{name}-{digest}.json"
        if path.exists():
            return json.loads(path.read_text("utf-8"))["result"]
        if self.time_is_over:
            raise OutOfTime(f"{self.minutes:g} minutes are over before {name}; the same command goes on from there")
        started = perf_counter()
        result = rounded(compute())
        seconds = perf_counter() - started
        write_json(path, {"settings": settings, "seconds": seconds, "result": result})
        self.say(f"{name}: {seconds:.1f} s")
        return result

    def optional_piece(self, name: str, settings: Mapping[str, Any], compute: Callable[[], Any]) -> Any | None:
        """As `piece`; None where the minutes are over."""
        try:
            return self.piece(name, settings, compute)
        except OutOfTime:
            return None


def not_run(claim: str, published: str, study: str) -> Finding:
    """A claim whose training runs are missing."""
    return Finding(claim, published, "-", Verdict.NOT_RUN, recipe=f"phloem study {study}")


def sided(gap: Estimate, sign: int) -> Verdict:
    """Whether a difference has the claimed sign, by its interval; undecided where that holds 0 or there is none."""
    low, high = (gap.low, gap.high) if sign > 0 else (-gap.high, -gap.low)
    return Verdict.CONFIRMED if low > 0 else Verdict.NOT_CONFIRMED if high < 0 else Verdict.UNDECIDED


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path, "--folder or --work"):
        replace_text(path, to_json(rounded(content), indent=1))


def rounded(value: Any) -> Any:
    """Built-in types that JSON has, floats to six digits."""
    return plain(value, digits=6)
