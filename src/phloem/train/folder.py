"""The run folder: what was asked for, on what it ran, what happened.

config.yaml      the resolved settings
env.json         versions, machine, command
metrics.jsonl    one object per line: a training step, an evaluation, a cold-start step (docs/metrics.md)
rollouts.jsonl   one group per line
completions/     a few completions of each evaluation, to be read
model/           the trained policy, as transformers (or peft) loads it
best/            the policy of the best evaluation, if evaluations were asked for in between
checkpoints/     what a run needs to go on (phloem.train.checkpoint)
curves.png       the run as a picture
summary.json     the figures printed at the end
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from phloem.analysis.plots import read_metrics
from phloem.config import TrainConfig
from phloem.credit import Credit
from phloem.files import replace_text, to_json, writing
from phloem.kinds import ConfigError
from phloem.rewards.verdict import Status, Verdict
from phloem.settings import to_yaml
from phloem.tasks.task import Example
from phloem.train.completions import Row, as_markdown
from phloem.train.trackers import Trackers
from phloem.tree import Group

__all__ = ["RunFolder", "group_record"]

PACKAGES = ("phloem", "torch", "transformers", "accelerate", "peft", "tokenizers", "safetensors", "numpy")
LOGS = ("metrics.jsonl", "rollouts.jsonl")
"""Files that grow."""
BEFORE = ("config.yaml", "env.json", *LOGS)
"""Files made before a model loads."""
LOCK = ".lock"
LATER = ("model", "best", "checkpoints", "completions", "tensorboard", "curves.png", "summary.json")
BROKEN_OFF = (Status.BAD_GOLD, Status.FAULT, Status.TIMEOUT)
"""Judgements whose reason is kept beside the rollout, as for those that were not scored."""


class RunFolder:
    """Writes a run's files; lines are flushed as they are written, so a killed run keeps them.

    Of several processes only the first makes one that writes (`RunFolder.make`); the others hold the path
    (`RunFolder.of_another`), and what they are told to write goes nowhere.

    Attributes:
        path: the folder.
        writes: whether this process writes.
        trackers: are shown what is written.
    """

    def __init__(self, path: Path, writes: bool) -> None:
        self.path, self.writes = path, writes
        self.trackers: Trackers | None = None
        self._begun = False
        self._metrics: TextIO | None = None
        self._rollouts: TextIO | None = None
        self._held: TextIO | None = None

    @classmethod
    def of_another(cls, path: Path) -> RunFolder:
        """The folder that another process writes."""
        return cls(path, writes=False)

    @classmethod
    def make(cls, config: TrainConfig) -> RunFolder:
        """Makes the folder and writes what is known before a model loads.

        Raises:
            ConfigError: the folder holds another run or files that a run would write over, or cannot be written.
        """
        folder = cls(cls.require_free(config), writes=True)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            replace_text(folder.path / "env.json", to_json(environment(), indent=2))
            replace_text(folder.path / "config.yaml", to_yaml(config))
            folder._open(config)
        except OSError as error:
            folder._take_back()
            raise ConfigError(f"run.folder {folder.path} cannot be written ({error}); name another one") from error
        return folder

    @staticmethod
    def require_free(config: TrainConfig) -> Path:
        """Where a new run would go, without making it.

        Raises:
            ConfigError: as `make`, as far as looking tells.
        """
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        task = config.task.name.replace(":", "-")
        path = Path(config.run.folder or f"runs/{task}-{config.credit.preset}-{stamp}")
        try:
            taken = [name for name in (*BEFORE, *LATER) if (path / name).exists()]
            place = next(place for place in (path, *path.absolute().parents) if place.exists())
        except OSError as error:  # a name that is too long, a folder that must not be looked into
            raise ConfigError(f"run.folder {path} cannot be used ({error.strerror}); name another one") from error
        if "metrics.jsonl" in taken:
            raise ConfigError(
                f"run.folder {path} holds a run already; go on with `phloem train --resume {path}`, or name another "
                "folder"
            )
        if taken:
            raise ConfigError(
                f"run.folder {path} holds {', '.join(taken)}, which a run writes; name a new or empty folder"
            )
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            raise ConfigError(f"run.folder {path} cannot be written: {place} cannot; name another one")
        return path

    @classmethod
    def again(cls, config: TrainConfig) -> RunFolder:
        """Opens the folder of a run that goes on; `rewind` then drops what came after its checkpoint.

        Raises:
            ConfigError: another process writes it, or it cannot be written.
        """
        folder = cls(Path(config.run.folder or ""), writes=True)
        folder._begun = True
        try:
            folder._open(config)
        except OSError as error:
            raise ConfigError(f"the run in {folder.path} cannot be opened again ({error})") from error
        return folder

    def write_settings(self, config: TrainConfig) -> None:
        """Notes how a run goes on, once it is sure that it does: the settings from here on, and on what it runs."""
        if not self.writes:
            return
        place = self.path / "env.json"
        try:
            env = dict(json.loads(place.read_text("utf-8")))
        except (OSError, ValueError, TypeError):  # lost, or no object any more: no reason to stop a run
            env = {}
        env["resumed"] = [*env.get("resumed", []), environment()]
        with writing(self.path):
            replace_text(place, to_json(env, indent=2))
            replace_text(self.path / "config.yaml", to_yaml(config))

    def require_nothing_logged(self) -> None:
        """Raises ConfigError: the run has taken steps, which one that starts anew would drop."""
        if taken := len(self.steps()):
            raise ConfigError(
                f"the run in {self.path} has logged {taken} steps, and has no complete checkpoint to go on from: start "
                "a new run in another folder, from its model if it kept one"
            )

    def _open(self, config: TrainConfig) -> None:
        self._lock()
        self._metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
        if config.run.save_rollouts:
            self._rollouts = (self.path / "rollouts.jsonl").open("a", encoding="utf-8")

    def _lock(self) -> None:
        """Holds the folder as long as this process lives. (A lock of this kind is not inherited by reward workers.)"""
        self._held = (self.path / LOCK).open("w")
        try:
            fcntl.lockf(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            self._held = None
            raise ConfigError(f"another process is writing the run in {self.path}: wait for it, or end it") from error
        except OSError as error:  # some network file systems have no locks
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise

    @property
    def lengths(self) -> dict[str, int]:
        """Bytes written so far to each file that grows; what is flushed is all there is."""
        return {path.name: path.stat().st_size for path in self._logs}

    @property
    def _logs(self) -> list[Path]:
        """The files that grow, whether or not the run goes on writing them."""
        return [path for name in LOGS if self.writes and (path := self.path / name).exists()]

    def rewind(self, lengths: Mapping[str, int]) -> list[str]:
        """Drops what was written after these lengths, so that steps taken again are logged once.

        Returns a sentence for each file that has lost lines, and ends it where its last whole line does.
        """
        lost = []
        for path in self._logs:
            length, size = lengths.get(path.name, 0), path.stat().st_size
            if size < length:
                lost.append(f"{path} has lost lines: {size:,} bytes of {length:,} are there")
                length = path.read_bytes().rfind(b"\n") + 1
            with writing(path):
                os.truncate(path, length)  # opened to append
        return lost

    def steps(self) -> list[dict[str, Any]]:
        """The training steps logged so far."""
        return [r for r in read_metrics(self.path / "metrics.jsonl") if r["kind"] == "train"]

    @property
    def how_to_go_on(self) -> str:
        """For a run that was stopped."""
        if not self._begun and not (self.path / "checkpoints").exists():
            return "nothing was begun; give the same command again"
        return f"go on with `phloem train --resume {self.path}`"

    def metrics(self, record: dict[str, Any]) -> None:
        """Appends one line to metrics.jsonl; figures that are not finite become null.

        Raises:
            PhloemError: it cannot be written any more (a full disk); so do the two below.
        """
        if self._metrics is not None:
            self._append(self._metrics, to_json(record))
        if self.trackers is not None:
            self.trackers(record)

    def rollouts(self, records: Iterable[dict[str, Any]]) -> None:
        """Appends groups to rollouts.jsonl, if the run keeps them; they are not asked for if it does not."""
        if self._rollouts is not None:
            self._append(self._rollouts, "".join(to_json(record, ensure_ascii=False) for record in records))

    def completions(self, step: int, title: str, rows: Sequence[Row]) -> None:
        """Writes completions of an evaluation to a page of their own, and shows them to the trackers."""
        if self.writes and rows:
            path = self.path / "completions" / f"{step:06d}.md"
            with writing(path):
                path.parent.mkdir(exist_ok=True)
                path.write_text(as_markdown(f"{title}, step {step}", rows), encoding="utf-8")
        if self.trackers is not None and rows:
            self.trackers.completions(step, rows)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        if self.writes:
            with writing(self.path / name):
                (self.path / name).write_text(to_json(content, indent=2), encoding="utf-8")

    def _append(self, file: TextIO, text: str) -> None:
        self._begun = True
        with writing(Path(file.name)):
            file.write(text)
            file.flush()

    def close(self) -> None:
        """Closes the files. A run that logged nothing leaves none, so that the same command can be given again."""
        for file in (self._metrics, self._rollouts):
            if file is not None:
                with suppress(OSError):  # what could not be flushed was an error when it was written
                    file.close()
        if self._held is not None:
            with suppress(OSError):
                (self.path / LOCK).unlink()
            self._held.close()
        if self.writes and not self._begun and not (self.path / "checkpoints").exists():
            self._take_back()

    def _take_back(self) -> None:
        with suppress(OSError):  # it was never made, or holds something else as well
            for name in (*BEFORE, LOCK):
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
