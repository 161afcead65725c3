"""Checkpoints: what a run needs to go on as if it had never stopped.

checkpoints/
  reference.safetensors    weights of the KL reference, if the run keeps one; written once
  step-000020/
    model/                 the policy (or its adapters), as transformers (or peft) loads it
    optimiser.safetensors  AdamW's moments, by the names of the parameters
    random.pt              random states of every process
    config.yaml            the settings it was written under
    state.json             where the run stands; size and checksum of every file above; written last

A checkpoint is written beside its place and renamed when it is on the disk. One that lacks a file, or holds another
content than `state.json` says, is skipped with a line, and the one before it is taken.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from safetensors.torch import load_file, save_file
from torch import Tensor

from phloem.evaluate.held_out import HeldOut
from phloem.files import replaced_folder, size_shown, to_json, writing
from phloem.kinds import PhloemError

__all__ = ["Checkpoints", "Progress", "Saved", "random_state", "set_random_state"]

SETTINGS = "config.yaml"
MARGIN = 2**24
"""Bytes kept free on the disk beside a checkpoint."""


@dataclass
class Progress:
    """Where a run stands between two steps.

    Attributes:
        step: training steps taken.
        updates: optimiser updates planned so far (the schedule's position).
        taken: training examples taken.
        best: the best mean reward of the evaluations in between; -inf before the first.
        start: digest of the trained weights before the first step.
        before: the held-out evaluation before the first step.
    """

    step: int = 0
    updates: int = 0
    taken: int = 0
    best: float = -math.inf
    start: str = ""
    before: HeldOut | None = None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Progress:
        """From what `asdict` and JSON made of it."""
        found = cls(**content)
        found.best = -math.inf if found.best is None else found.best
        if isinstance(content["before"], dict):
            ids, rewards, truncated = (content["before"][name] for name in ("ids", "rewards_Bn", "truncated"))
            found.before = HeldOut(tuple(ids), np.array(rewards, dtype=float), truncated)  # null becomes NaN
        return found


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint.

    Attributes:
        path: its folder.
        progress: where the run stood.
        weights: digest of the trained weights.
        data: digest of the training examples.
        processes: how many took part.
        lengths: bytes of metrics.jsonl and rollouts.jsonl at the time.
    """

    path: Path
    progress: Progress
    weights: str
    data: str
    processes: int
    lengths: Mapping[str, int]

    @property
    def model(self) -> Path:
        """The folder of the policy or its adapters."""
        return self.path / "model"

    def optimiser(self) -> dict[str, Tensor]:
        return load_file(self.path / "optimiser.safetensors")

    def reference(self) -> dict[str, Tensor]:
        return load_file(self.path.parent / "reference.safetensors")

    def random_states(self) -> list[dict[str, Any]]:
        return torch.load(self.path / "random.pt", weights_only=True)


class Checkpoints:
    """The checkpoints of a run folder, the newest `keep` of them."""

    def __init__(self, run: Path, keep: int) -> None:
        self.path = run / "checkpoints"
        self._keep = keep

    def save(
        self,
        saved: Saved,
        settings: str,
        save_model: Callable[[Path], None],
        optimiser: Mapping[str, Tensor],
        random_states: list[dict[str, Any]],
    ) -> None:
        """Writes a checkpoint (`saved.path` is not read; `settings` are YAML) and removes old ones.

        Raises:
            PhloemError: it cannot be written; the older ones are still there.
        """
        place = self.path / f"step-{saved.progress.step:06d}"
        with replaced_folder(place) as aside:
            save_model(aside / "model")
            save_file(dict(optimiser), aside / "optimiser.safetensors")
            torch.save(random_states, aside / "random.pt")
            (aside / SETTINGS).write_text(settings, encoding="utf-8")
            reference = [path] if (path := self.path / "reference.safetensors").exists() else []
            files = {_name(path, aside): _size_and_checksum(path) for path in (*_files(aside), *reference)}
            content = {**asdict(replace(saved, path=Path())), "path": None, "files": files}
            (aside / "state.json").write_text(to_json(content, indent=2), encoding="utf-8")
        older = [path for path in self._places() if path.name <= place.name]
        for path in older[self._keep :]:
            shutil.rmtree(path, ignore_errors=True)

    def save_reference(self, tensors: Mapping[str, Tensor]) -> None:
        """Writes the weights of the KL reference; before the first checkpoint."""
        place = self.path / "reference.safetensors"
        aside = place.with_name(place.name + ".new")
        with writing(place):
            self.path.mkdir(parents=True, exist_ok=True)
            save_file(dict(tensors), aside)
            aside.chmod(self.path.stat().st_mode & 0o666)
            aside.replace(place)

    def newest(self, announce: Callable[[str], None]) -> Saved | None:
        """The newest complete checkpoint; each newer one that is not complete is announced with the reason."""
        for place in self._places():
            try:
                return _read(place)
            except (OSError, ValueError, KeyError, TypeError) as error:
                announce(f"checkpoint {place.name} is skipped, it is not complete: {error}")
        return None

    @property
    def settings(self) -> Path | None:
        """The file of the settings that the newest checkpoint was written under."""
        return next((place / SETTINGS for place in self._places() if (place / SETTINGS).exists()), None)

    def clear(self) -> None:
        """Removes all of them, once a run is done that is to leave no weights."""
        shutil.rmtree(self.path, ignore_errors=True)

    def require_room(self, size: int, what: str) -> None:
        """Raises PhloemError: fewer than `size` bytes (and some for logs) are free for `what`."""
        place = next(path for path in (self.path, *self.path.parents) if path.exists())
        free = shutil.disk_usage(place).free
        if free < size + MARGIN:
            raise PhloemError(
                f"{self.path} needs {size_shown(size + MARGIN)} for {what}, and its disk has {size_shown(free)} free: "
                "make room, name another run.folder, lower run.keep_checkpoints, or set run.checkpoint_every 0 for none"
            )

    def _places(self) -> list[Path]:
        """The folders of checkpoints, newest first."""
        return sorted((p for p in self.path.glob("step-*") if p.suffix == "" and p.is_dir()), reverse=True)


def _read(place: Path) -> Saved:
    """Raises OSError, ValueError, KeyError or TypeError, whichever comes first: the checkpoint is not complete."""
    content = json.loads((place / "state.json").read_text("utf-8"))
    for name, expected in content.pop("files").items():
        found = _size_and_checksum(place / name)
        if found != tuple(expected):
            raise ValueError(f"{name} has {found[0]} bytes of other content than the {expected[0]} that were written")
    return Saved(**content | {"path": place, "progress": Progress.from_json(content["progress"])})


def _files(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _name(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else f"../{path.name}"


def _size_and_checksum(path: Path) -> tuple[int, int]:
    checksum, size = 0, 0
    for block in _blocks(path):
        checksum, size = zlib.crc32(block, checksum), size + len(block)
    return size, checksum


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(2**22):
            yield block


def random_state() -> dict[str, Any]:
    """The state of every generator of this process that training may draw from."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  # rewards of others may draw from it
    return {
        "python": random.getstate(),
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(states: list[dict[str, Any]], rank: int, seed: int) -> None:
    """Goes on from the states that were saved; a process that was not there then begins from the seed."""
    if rank >= len(states):
        set_seed(seed + rank)
        return
    state = states[rank]
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    for device, own in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(own, device)
