"""predictions.jsonl: what a model wrote to each problem and how it was judged; one line a problem, appended.

A line carries the fingerprint of the settings it was made under. A kill can cut the last line short; it is taken off
when the file is opened again, and its problem is sampled again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phloem.files import to_json, writing
from phloem.kinds import PhloemError
from phloem.rewards.verdict import Status, Verdict
from phloem.tree import Finish

__all__ = ["Prediction", "Sample", "append", "read", "repair"]


@dataclass(frozen=True)
class Sample:
    """One completion with its verdict (`phloem.rewards.Verdict`), flat. `tokens` counts the closing EOS."""

    text: str
    tokens: int
    finish: Finish
    status: Status
    reward: float | None
    extracted: str | None = None
    parsed: str | None = None
    gold: str | None = None
    detail: str = ""

    @classmethod
    def of(cls, text: str, tokens: int, finish: Finish, verdict: Verdict) -> Sample:
        return cls(text, tokens, finish, **{name: getattr(verdict, name) for name in _VERDICT})

    @property
    def clipped(self) -> bool:
        """Whether it was cut at the cap."""
        return self.finish is Finish.LENGTH

    @property
    def answer(self) -> tuple[str, str] | None:
        """How the answer was read and how it was written, for a vote; None: there is none."""
        if self.extracted is None:
            return None
        return (" ".join(self.extracted.split()) if self.parsed is None else self.parsed, self.extracted)


_VERDICT = ("status", "reward", "extracted", "parsed", "gold", "detail")


@dataclass(frozen=True)
class Prediction:
    """One problem of one benchmark: its prompt as the model was given it, its gold answer, the samples."""

    fingerprint: str
    benchmark: str
    id: str
    prompt: str
    prompt_tokens: int
    answer: Any
    samples: tuple[Sample, ...]


def append(path: Path, predictions: Iterable[Prediction]) -> None:
    """Appends lines and flushes them. Raises PhloemError: they cannot be written (a full disk)."""
    with writing(path, "folder"), path.open("a", encoding="utf-8") as file:
        for prediction in predictions:
            file.write(to_json(asdict(prediction), ensure_ascii=False))
            file.flush()


def read(path: Path) -> list[Prediction]:
    """The predictions of a file, in order.

    Raises PhloemError: it cannot be read, or a line is not a prediction (named).
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise PhloemError(f"{path} cannot be read: {error.strerror or error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_prediction(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise PhloemError(f"{path} line {number} is not a prediction ({error}); evaluate again elsewhere") from None
    return found


def repair(path: Path) -> None:
    """Takes off a last line that a kill left unfinished. Every whole line ends in a newline."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


def _prediction(record: dict[str, Any]) -> Prediction:
    samples: Sequence[dict[str, Any]] = record.pop("samples")
    made = [Sample(**{**s, "finish": Finish(s["finish"]), "status": Status(s["status"])}) for s in samples]
    return Prediction(**record, samples=tuple(made))
