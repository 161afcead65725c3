"""Runs studies: measures (piece by piece, kept), judges, draws, and writes results, page and summary."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from phloem.studies.names import get
from phloem.studies.page import page, results_in, summary_page
from phloem.studies.study import Bench, Study, Verdict, rounded, write_json

__all__ = ["run_studies"]


def run_studies(
    names: Sequence[str],
    folder: Path,
    work: Path,
    quick: bool = False,
    minutes: float | None = None,
    trains: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Runs studies by name and writes, for each, `NAME.json`, `NAME.md` and figures, and `index.md` over all.

    Args:
        names: of studies.
        folder: of results.
        work: folder of pieces, training runs and checkpoints; what is there is not done again.
        quick: cut down, to see that it runs; keep its folders apart from those of a full study.
        minutes: no piece of work is begun after this long, over all the studies.
        trains: whether training runs that a study reads and that are missing are made first.
        say: takes a line for the reader.

    Raises:
        ConfigError: a name that is none.
        OutOfTime: the minutes are over and a study has no result yet.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    studies = [get(name) for name in names]
    bench = Bench(work, quick, minutes, trains, say)
    for study in studies:
        say(f"{study.name}: {study.title}")
        run_study(study, folder, bench)
        say(f"  in {folder / (study.name + '.md')}")


def run_study(study: Study, folder: Path, bench: Bench) -> dict[str, Any]:
    """Runs one study and writes its files; returns its results as they stand in the JSON."""
    measured = rounded(study.measure(bench))
    findings = study.judge(measured)
    if bench.quick:
        findings = [replace(f, verdict=Verdict.NOT_TESTED) for f in findings]
    folder.mkdir(parents=True, exist_ok=True)
    figures = study.draw(measured, folder)
    results = {
        "study": study.name,
        "quick": bench.quick,
        "environment": _environment(),
        "findings": [asdict(f) for f in findings],
        "figures": [asdict(f) for f in figures],
        "tables": study.tables(measured) if study.tables else "",
        "measured": measured,
    }
    write_json(folder / f"{study.name}.json", results)
    (folder / f"{study.name}.md").write_text(page(study, rounded(results)), encoding="utf-8")
    (folder / "index.md").write_text(summary_page(results_in(folder)), encoding="utf-8")
    for f in findings:
        bench.say(f"  {f.verdict}: {f.claim}: {f.ours} (published {f.published})")
    return results


def _environment() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("phloem", "numpy", "torch", "transformers")},
    }
