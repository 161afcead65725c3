"""The command that tests the papers' claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phloem.cli.line import read_line
from phloem.kinds import ConfigError

__all__ = ["study"]


def study(words: Sequence[str]) -> None:
    """Test the papers' claims: `phloem study list`, `phloem study NAME [NAME ...]`.

    Options:
      --quick             cut down to seconds: shows that a study runs, judges nothing
      --no-training       read the training runs that are there; train none
      --minutes M         begin no piece of work after M minutes; the same command goes on from there
      --folder FOLDER     results: JSON, figures, pages and a summary (default: studies, with --quick studies-quick)
      --work FOLDER       pieces of work and training runs, made once (default: runs/studies, runs/studies-quick)
    """
    line = read_line("study", words, options=("minutes", "folder", "work"), flags=("quick", "no-training"))
    if line.words == ["list"]:
        from phloem.studies.names import NAMES

        print("\n".join(f"{name:<20} {asks}" for name, asks in NAMES.items()))
        return
    if not line.words:
        raise ConfigError("phloem study needs a name; `phloem study list` shows them")
    text = line.option("minutes")
    try:
        minutes = None if text is None else float(text)
    except ValueError:
        raise ConfigError(f"--minutes is {text!r}; it takes a number") from None
    from phloem.studies.runner import run_studies

    quick = "quick" in line.flags
    tail = "-quick" if quick else ""
    run_studies(
        line.words,
        folder=Path(line.option("folder") or f"studies{tail}"),
        work=Path(line.option("work") or f"runs/studies{tail}"),
        quick=quick,
        minutes=minutes,
        trains="no-training" not in line.flags,
    )
