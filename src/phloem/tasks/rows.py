"""Rows of a data set, from a local file or the hub, as plain dictionaries."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phloem.tasks.task import TaskError

__all__ = ["READERS", "Row", "read_rows", "require_text"]

Row = Mapping[str, Any]


def read_rows(path: str, *, subset: str | None = None, split: str = "train") -> list[dict[str, Any]]:
    """All rows of a file, by its ending, or of a hub data set (`subset` and `split` are for these only).

    Raises TaskError: no such file or data set, an ending that is not known, a line that cannot be read (named).
    """
    path = os.path.expanduser(path)
    reader = READERS.get(Path(path).suffix.lower())
    if Path(path).is_file():
        if reader is None:
            raise TaskError(f"{path}: its ending is none of {', '.join(READERS)}")
        try:
            return reader(Path(path))
        except UnicodeDecodeError as error:
            raise TaskError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None
        except OSError as error:
            raise TaskError(f"{path} cannot be read: {error.strerror or error}") from None
    if reader is not None or Path(path).exists():
        raise TaskError(f"no file {path} (looked in {Path.cwd()})")
    return _hub(path, subset, split)


def _jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise TaskError(f"{path} line {number} is not JSON: {error}") from None
            rows.append(_object(row, f"{path} line {number}"))
    return rows


def _json(path: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise TaskError(f"{path} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise TaskError(f"{path} must hold a list of objects, not {type(rows).__name__}; one object a line is .jsonl")
    return [_object(row, f"{path} row {number}") for number, row in enumerate(rows, start=1)]


def _object(row: Any, place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TaskError(f"{place} is not an object but {type(row).__name__}")
    return row


def require_text(place: str, *values: Any) -> None:
    """Half a surrogate pair, which JSON can hold as `\\ud800`, is no text that a tokenizer or a log could take.

    Raises TaskError: a value, or one within it, is of that kind.
    """
    for value in values:
        try:
            (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)).encode()
        except UnicodeEncodeError as error:
            raise TaskError(f"{place} holds text that is not Unicode: {error}") from None


def _csv(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, restkey="", strict=True)
        try:
            header = list(reader.fieldnames or ())
            rows = list(reader)
        except csv.Error as error:
            raise TaskError(f"{path} line {reader.reader.line_num} is not CSV: {error}") from None
    if twice := [name for name in header if header.count(name) > 1]:
        raise TaskError(f"{path} has two columns called {twice[0]!r}: rename one")
    for number, row in enumerate(rows, start=1):
        if "" in row or None in row.values():
            raise TaskError(f"{path} row {number} has more or fewer fields than the header")
    return rows


def _parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet

    try:
        return parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise TaskError(f"{path} cannot be read as parquet: {error}") from None


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _csv,
}


def _hub(path: str, subset: str | None, split: str) -> list[dict[str, Any]]:
    import datasets

    from phloem.models.hub import endpoint, reachable, without_waiting

    try:
        with without_waiting():
            return [dict(row) for row in datasets.load_dataset(path, subset, split=split)]
    except (OSError, ValueError, RuntimeError) as error:
        if not reachable():
            raise TaskError(
                f"{path} is no file here and not in the hub's cache, and {endpoint()} cannot be reached: check the "
                "network (and HF_HUB_OFFLINE), or give a file"
            ) from error
        raise TaskError(
            f"{path} is neither a file nor a data set that the hub gives (subset {subset}, split {split}): {error}"
        ) from error
