"""Trackers: what metrics.jsonl holds, sent to TensorBoard, trackio or wandb as it is written.

A figure is called `KIND/KEY` (`train/reward`), over the step of its line. Messages and the completions of evaluations
go along as texts and tables. trackio keeps everything on this machine unless told otherwise; wandb sends it to its
server, or nowhere with WANDB_MODE=offline. `phloem[trackers]` installs all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from phloem.config import TrainConfig
from phloem.files import plain
from phloem.kinds import ConfigError
from phloem.settings import flat, to_yaml
from phloem.train.completions import as_code

__all__ = ["Trackers", "require_trackers"]

COLUMNS = ("prompt", "completion", "reward", "verdict")
"""Of the table of completions."""


class _Tracker(Protocol):
    def log(self, kind: str, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None: ...

    def table(self, name: str, step: int, rows: Sequence[Sequence[Any]]) -> None: ...

    def close(self) -> None: ...


def require_trackers(config: TrainConfig) -> None:
    """Raises ConfigError: a tracker of `run.trackers` is not installed."""
    for name in config.run.trackers:
        if find_spec(name) is None:
            raise ConfigError(
                f"run.trackers names {name}, which is not installed: `pip install phloem[trackers]` (or {name}), or "
                "leave it out"
            )


class Trackers:
    """All trackers of a run; called with each record of metrics.jsonl."""

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        """Starts those that `run.trackers` names.

        Raises:
            ConfigError: one cannot be started.
        """
        self._started: list[_Tracker] = []
        for name in config.run.trackers:
            try:
                made = _TensorBoard(config, folder) if name == "tensorboard" else _Hosted(name, config, folder)
            except Exception as error:  # each library has its own
                self.close()
                hint = "; log in, or set WANDB_MODE=offline" if name == "wandb" else ""
                raise ConfigError(f"run.trackers: {name} could not be started ({error}){hint}") from error
            self._started.append(made)

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Sends the finite figures of a record, and its texts."""
        kind, step = record["kind"], record["step"]
        rest = {key: value for key, value in record.items() if key not in ("kind", "step")}
        figures = {k: float(v) for k, v in rest.items() if isinstance(v, int | float) and isfinite(v)}
        texts = {k: v for k, v in rest.items() if isinstance(v, str)}
        for tracker in self._started:
            tracker.log(kind, step, figures, texts)

    def completions(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Sends a few completions of an evaluation, a row of `COLUMNS` each."""
        for tracker in self._started:
            tracker.table("evaluation/completions", step, rows)

    def close(self) -> None:
        for tracker in self._started:
            tracker.close()
        self._started.clear()


class _TensorBoard:
    """Event files in the run folder: `tensorboard --logdir RUNS` shows them."""

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", as_code(to_yaml(config)))

    def log(self, kind: str, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None:
        for key, value in figures.items():
            self._writer.add_scalar(f"{kind}/{key}", value, step)
        for key, text in texts.items():
            self._writer.add_text(f"{kind}/{key}", text, step)
        self._writer.flush()

    def table(self, name: str, step: int, rows: Sequence[Sequence[Any]]) -> None:
        parts = ["\n\n".join(f"{c}\n\n{as_code(str(v))}" for c, v in zip(COLUMNS, row, strict=True)) for row in rows]
        self._writer.add_text(name, "\n\n---\n\n".join(parts), step)

    def close(self) -> None:
        self._writer.close()


class _Hosted:
    """wandb and trackio, which have one interface. Steps are figures of each kind, since kinds count on their own."""

    def __init__(self, name: str, config: TrainConfig, folder: Path) -> None:
        self._module = import_module(name)
        own: dict[str, Any] = {"dir": str(folder), "id": folder.resolve().name} if name == "wandb" else {"embed": False}
        values = plain(flat(config))
        self._run = self._module.init(
            project=config.run.project, name=folder.resolve().name, config=values, resume="allow", **own
        )
        if name == "wandb":
            for kind in ("train", "evaluation", "cold_start", "alarm"):
                self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")

    def log(self, kind: str, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None:
        self._run.log({f"{kind}/{key}": value for key, value in {"step": step, **figures, **texts}.items()})

    def table(self, name: str, step: int, rows: Sequence[Sequence[Any]]) -> None:
        table = self._module.Table(columns=list(COLUMNS), data=[list(row) for row in rows])
        self._run.log({name: table, "evaluation/step": step})

    def close(self) -> None:
        self._run.finish()
