"""Files that are whole or not there, and errors that say which file could not be written."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from phloem.kinds import PhloemError

__all__ = ["plain", "replace_text", "replaced_folder", "size_shown", "to_json", "writing"]


@contextmanager
def replaced_folder(path: Path, setting: str = "run.folder") -> Iterator[Path]:
    """A folder to fill beside `path`; it takes the place of `path` once it is whole and on the disk.

    A kill while it is filled leaves `path` as it was. (Between the two renames `path` is missing for a moment; the
    old folder is then found as `path.old`.) Its files get the permissions that new files get, whoever wrote them.

    Raises:
        PhloemError: it cannot be filled (a full disk); `path` is as it was.
    """
    aside, old = path.with_name(path.name + ".new"), path.with_name(path.name + ".old")
    for leftover in (aside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        with writing(path, setting):
            aside.mkdir(parents=True)
            yield aside
            _settle(aside)
            if path.exists():
                path.rename(old)
            aside.rename(path)
            _to_disk(path.parent)
    except PhloemError:  # what is half written would fill the disk further
        shutil.rmtree(aside, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _settle(folder: Path) -> None:
    """Brings a folder's files to the disk; safetensors leaves its files unreadable to others, which is mended here."""
    mode = folder.stat().st_mode & 0o666
    for path in (*folder.rglob("*"), folder):
        if path.is_file():
            path.chmod(mode)
        _to_disk(path)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all; a kill leaves the old one or the new one."""
    aside = path.with_name(path.name + ".new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


@contextmanager
def writing(path: Path, setting: str = "run.folder") -> Iterator[None]:
    """Raises PhloemError: what is written inside could not be; names the file and the setting of its folder."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise PhloemError(
            f"{path} cannot be written ({error}): make room on its disk, or name another {setting}"
        ) from error


def size_shown(size: float) -> str:
    """Bytes in words."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def to_json(content: Mapping[str, Any], **how: Any) -> str:
    """One line of JSON (unless `how` says otherwise) in built-in types; what is not finite becomes null."""
    return json.dumps(plain(content), allow_nan=False, **how) + "\n"


def plain(value: Any, digits: int | None = None) -> Any:
    """Built-in types only, floats to so many digits (None: all), and null for what is not finite: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {str(key): plain(v, digits) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, digits) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), digits)
    if isinstance(value, float):
        rounded = value if digits is None else float(f"{value:.{digits}g}")
        return rounded if math.isfinite(value) else None
    return value
