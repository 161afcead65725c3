"""The pages of the studies, made from their results: claim, published, ours, verdict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from phloem.studies.names import NAMES
from phloem.studies.study import Study

__all__ = ["page", "results_in", "summary_page"]

HEAD = "| claim | published | ours | verdict |\n|---|---|---|---|\n"
QUICK = "**A quick run: it shows that the study works; its figures judge nothing.**"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def page(study: Study, results: Mapping[str, Any]) -> str:
    """The page of one study, as Markdown."""
    quick = " --quick" if results["quick"] else ""
    findings = results["findings"]
    parts = [f"# {study.title}", study.question.strip()]
    if results["quick"]:
        parts.append(QUICK)
    rows = [_row([f["claim"], f["published"], f["ours"], f"**{f['verdict']}**"]) for f in findings]
    parts.append((HEAD + "".join(rows)).strip())
    parts += [f"![{figure['caption']}]({figure['file']})\n\n{figure['caption']}" for figure in results["figures"]]
    if results["tables"]:
        parts.append(results["tables"].strip())
    if notes := [f"- {f['claim']}: {f['note']}" for f in findings if f["note"]]:
        parts.append("## Notes\n\n" + "\n".join(notes))
    if study.departures:
        parts.append("## What differs from the paper\n\n" + study.departures.strip())
    if recipes := [f"{f['claim']}:\n\n```bash show\n{f['recipe']}\n```" for f in findings if f["recipe"]]:
        parts.append("## Not tested or not run yet\n\n" + "\n\n".join(recipes))
    environment = results["environment"]
    parts.append(
        f"## How to run it\n\n```bash show\nphloem study {study.name}{quick}\n```\n\n{study.budget.strip()} "
        f"Figures of {environment['date']}, {environment['cpus']} CPU cores ({environment['machine']}), "
        f"torch {environment['torch']}, numpy {environment['numpy']}; numbers in "
        f"[{study.name}.json]({study.name}.json)."
    )
    return "\n\n".join(parts) + "\n"


def results_in(folder: Path) -> dict[str, dict[str, Any]]:
    """The results that a folder holds, by study, in the studies' order."""
    paths = {name: folder / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text("utf-8")) for name, path in paths.items() if path.exists()}


def summary_page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Every claim of every study that was run, as Markdown."""
    counts: dict[str, int] = {}
    rows = []
    for name, found in results.items():
        for f in found["findings"]:
            counts[f["verdict"]] = counts.get(f["verdict"], 0) + 1
            rows.append(_row([f"[{name}]({name}.md)", f["claim"], f["published"], f["ours"], f"**{f['verdict']}**"]))
    missing = [name for name in NAMES if name not in results]
    parts = [
        "# The two papers, claim by claim",
        "What GRPO-MA (arXiv 2509.24494) and lambda-GRPO (arXiv 2509.21154) claim, tested at the size of a CPU. A "
        "verdict is about the claim at this size and nothing more. `undecided`: the seeds are too few or the intervals "
        "too wide for a verdict. Intervals are 95 %.",
        "Verdicts: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + ".",
        ("| study | claim | published | ours | verdict |\n|---|---|---|---|---|\n" + "".join(rows)).strip(),
        "```bash show\nphloem study list\nphloem study binary-tree --folder docs/studies\n"
        "phloem study matrix --minutes 60    # stops after an hour; the same command goes on\n```",
    ]
    if any(found["quick"] for found in results.values()):
        parts.insert(1, QUICK)
    if missing:
        parts.append("Not run here yet: " + ", ".join(f"`{name}`" for name in missing) + ".")
    return "\n\n".join(parts) + "\n"
