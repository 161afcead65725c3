"""The run folder: what was asked for, on what it ran, what happened.

config.yaml      the resolved settings
env.json         versions, machine, command
metrics.jsonl    one object per line: a training step, an evaluation, a cold-start step (docs/metrics.md)
rollouts.jsonl   one group per line
model/           the trained policy, as transformers (or peft) loads it
best/            the policy of the best evaluation, if evaluations were asked for in between
curves.png       the run as a picture
summary.json     the figures printed at the end
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from safetensors import SafetensorError

from phloem.config import TrainConfig
from phloem.credit import Credit
from phloem.kinds import ConfigError, PhloemError
from phloem.rewards.verdict import Status, Verdict
from phloem.settings import to_yaml
from phloem.tasks.task import Example
from phloem.tree import Group

__all__ = ["RunFolder", "group_record", "replaced_folder"]

PACKAGES = ("phloem", "torch", "transformers", "accelerate", "peft", "tokenizers", "safetensors", "numpy")
BEFORE = ("config.yaml", "env.json", "metrics.jsonl", "rollouts.jsonl")
"""Files made before a model loads."""
LATER = ("model", "best", "curves.png", "summary.json")
BROKEN_OFF = (Status.BAD_GOLD, Status.FAULT, Status.TIMEOUT)
"""Judgements whose reason is kept beside the rollout, as for those that were not scored."""


class RunFolder:
    """Writes a run's files; lines are flushed as they are written, so a killed run keeps them."""

    def __init__(self, config: TrainConfig) -> None:
        """Makes the folder and writes what is known before a model loads.

        Raises:
            ConfigError: the folder holds another run or files that a run would write over, or cannot be written.
        """
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        task = config.task.name.replace(":", "-")
        self.path = Path(config.run.folder or f"runs/{task}-{config.credit.preset}-{stamp}")
        self._begun = False
        if (self.path / "metrics.jsonl").exists():
            raise ConfigError(f"run.folder {self.path} holds a run already; name another folder or remove it")
        if taken := [name for name in (*BEFORE, *LATER) if (self.path / name).exists()]:
            raise ConfigError(
                f"run.folder {self.path} holds {', '.join(taken)}, which a run writes; name a new or empty folder"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
            (self.path / "env.json").write_text(_json(environment(), indent=2), encoding="utf-8")
            self._metrics: TextIO = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
            self._rollouts: TextIO | None = None
            if config.run.save_rollouts:
                self._rollouts = (self.path / "rollouts.jsonl").open("a", encoding="utf-8")
        except OSError as error:
            self._take_back()
            raise ConfigError(f"run.folder {self.path} cannot be written ({error}); name another one") from error

    def metrics(self, record: dict[str, Any]) -> None:
        """Appends one line to metrics.jsonl; figures that are not finite become null.

        Raises:
            PhloemError: it cannot be written any more (a full disk); so do the two below.
        """
        self._append(self._metrics, _json(record))

    def rollouts(self, records: Sequence[dict[str, Any]]) -> None:
        """Appends groups to rollouts.jsonl, if the run keeps them."""
        if self._rollouts is not None:
            self._append(self._rollouts, "".join(_json(record, ensure_ascii=False) for record in records))

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        with _writing(self.path / name):
            (self.path / name).write_text(_json(content, indent=2), encoding="utf-8")

    def _append(self, file: TextIO, text: str) -> None:
        self._begun = True
        with _writing(Path(file.name)):
            file.write(text)
            file.flush()

    def close(self) -> None:
        """Closes the files. A run that logged nothing leaves none, so that the same command can be given again."""
        for file in (self._metrics, self._rollouts):
            if file is not None:
                with suppress(OSError):  # what could not be flushed was an error when it was written
                    file.close()
        if not self._begun:
            self._take_back()

    def _take_back(self) -> None:
        with suppress(OSError):  # it was never made, or holds something else as well
            for name in BEFORE:
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()


def environment() -> dict[str, Any]:
    """Versions, machine and command of this process."""
    import torch

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "packages": versions,
    }


def group_record(
    step: int, example: Example, group: Group, credit: Credit, verdicts: Sequence[Verdict], decode: Callable[..., str]
) -> dict[str, Any]:
    """One line of rollouts.jsonl: prompt, segments, and for each branch of the rule its value and advantage.

    `branches` names segments by their index among the scored ones of the group; `segments[i].scored` tells which
    these are.
    """
    kept = set(group.scored_segments)
    verdict_of = dict(zip(group.leaves, verdicts, strict=True))
    segments = []
    for s, segment in enumerate(group.segments):
        record: dict[str, Any] = {
            "parent": segment.parent,
            "level": int(group.levels_S[s]),
            "ids": segment.tokens.tolist(),
            "text": decode(segment.tokens),
            "finish": str(segment.finish),
            "scored": s in kept,
        }
        if segment.sampled is not None:
            record["sampled"] = segment.sampled.tolist()
        if s in verdict_of:
            record |= {"reward": segment.reward, "verdict": str(verdict_of[s].status)}
            if verdict_of[s].status in BROKEN_OFF or not verdict_of[s].scored:
                record["detail"] = verdict_of[s].detail
        segments.append(record)
    return {
        "step": step,
        "id": example.id,
        "prompt": decode(group.prompt),
        "prompt_ids": group.prompt.tolist(),
        "answer": example.answer if isinstance(example.answer, str | int | float) else str(example.answer),
        "segments": segments,
        "branches": {
            "segment": credit.branches.segment_B.tolist(),
            "value": credit.branches.value_B.tolist(),
            "advantage": credit.advantage_B.tolist(),
        },
    }


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A folder to fill beside `path`; it takes the place of `path` once it is whole.

    A kill while it is filled leaves `path` as it was. (Between the two renames `path` is missing for a moment; the
    old folder is then found as `path.old`.)

    Raises:
        PhloemError: it cannot be filled (a full disk); `path` is as it was.
    """
    aside, old = path.with_name(path.name + ".new"), path.with_name(path.name + ".old")
    for leftover in (aside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    with _writing(path):
        aside.mkdir(parents=True)
        yield aside
        if path.exists():
            path.rename(old)
        aside.rename(path)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Says which file could not be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise PhloemError(
            f"{path} cannot be written ({error}): make room on its disk, or name another run.folder"
        ) from error


def _json(content: dict[str, Any], **how: Any) -> str:
    return json.dumps(_plain(content), allow_nan=False, **how) + "\n"


def _plain(value: Any) -> Any:
    """Built-in types only, and null for what is not finite: JSON has no NaN."""
    if isinstance(value, dict):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
