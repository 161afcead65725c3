"""Short runs, quickly, and what they wrote, read back."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from phloem.train import RunResult, train

TIMED = ("ceiling_share", "distinct_per_second", "mfu")


def quick_train(*arguments: Any, **named: Any) -> RunResult:
    """`train` without the picture at its end, which is half of the time of so short a run."""
    with patch("phloem.train.report.draw_curves"):
        return train(*arguments, **named)


def metrics(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, of one kind if it is named."""
    return [line for line in _lines(run / "metrics.jsonl") if kind in (None, line["kind"])]


def rollouts(run: Path) -> list[dict[str, Any]]:
    """The groups of rollouts.jsonl."""
    return _lines(run / "rollouts.jsonl")


def untimed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures that a run repeats: all but those that hang on the clock."""
    return [{k: v for k, v in line.items() if not k.startswith("seconds") and k not in TIMED} for line in lines]


def is_saving(run: Path, since: float) -> bool:
    """Whether a checkpoint begun after `since` (of `time.time`) is being written; an earlier kill may have left one."""
    for place in run.glob("checkpoints/*.new"):
        with suppress(FileNotFoundError):  # finished in between
            if place.stat().st_mtime > since:
                return True
    return False


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]
