"""A finished run of the matrix, read back: its steps, evaluations, tokens, seconds and groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phloem.analysis.plots import read_metrics
from phloem.analysis.runs import group_of
from phloem.tree import Group

if TYPE_CHECKING:
    from phloem.studies.matrix import Cell

__all__ = ["Reading", "by_shape", "read", "seed_groups"]


@dataclass(frozen=True)
class Reading:
    """A run.

    Attributes:
        folder: the run folder.
        cell: which run of the matrix it is.
        steps: the training records of metrics.jsonl.
        evaluations: the evaluation records.
    """

    folder: Path
    cell: Cell
    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]

    def series(self, key: str) -> np.ndarray:
        """A figure of every step; NaN where it has no value."""
        return np.array([step.get(key) for step in self.steps], dtype=float)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The lines of rollouts.jsonl."""
        return read_metrics(self.folder / "rollouts.jsonl")

    def groups(self) -> Iterator[tuple[int, Group]]:
        """(step, group) of every group that was sampled."""
        for record in self.records:
            yield record["step"], group_of(record)

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens sampled up to and including each step; a thought counts once for all its answers."""
        spent: dict[int, int] = defaultdict(int)
        for record in self.records:
            for segment in record["segments"]:
                spent[record["step"]] += int(np.sum(segment.get("sampled", np.ones(len(segment["ids"])))))
        return np.cumsum([spent[step["step"]] for step in self.steps])

    @cached_property
    def seconds(self) -> np.ndarray:
        """Seconds of training (evaluations not counted) up to and including each step."""
        return np.cumsum(self.series("seconds"))

    def tokens_at(self, step: int) -> int:
        """Tokens sampled in the first `step` steps."""
        return int(self.tokens[step - 1]) if step else 0

    def seconds_at(self, step: int) -> float:
        """Seconds of the first `step` steps."""
        return float(self.seconds[step - 1]) if step else 0.0

    @property
    def last(self) -> float:
        """Held-out reward at the end."""
        return float(self.evaluations[-1]["reward"])

    @property
    def gain(self) -> float:
        """Held-out reward at the end minus before the first step."""
        return self.last - float(self.evaluations[0]["reward"])


def read(folder: Path, cell: Cell) -> Reading:
    """A finished run from its folder."""
    records = read_metrics(folder / "metrics.jsonl")
    kinds = {kind: [r for r in records if r["kind"] == kind] for kind in ("train", "evaluation")}
    return Reading(folder, cell, kinds["train"], kinds["evaluation"])


def by_shape(found: Iterable[Reading]) -> dict[tuple[str, str], list[Reading]]:
    """The runs of each (rule, shape), in the order they come."""
    sorted_out: dict[tuple[str, str], list[Reading]] = {}
    for reading in found:
        sorted_out.setdefault((reading.cell.rule, reading.cell.shape), []).append(reading)
    return sorted_out


def seed_groups(found: Sequence[Reading]) -> list[Group]:
    """Every group of these runs that has at least two scored rollouts."""
    groups = [group.scored() for reading in found for _, group in reading.groups()]
    return [group for group in groups if group.group_size > 1]
