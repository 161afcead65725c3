"""The report of an evaluation: one table of figures, written as JSON, Markdown and a page that needs no other file.

It says under which settings the figures hold, since reports of one model on one benchmark differ by ten points between
papers that do not: prompt, temperature, top-p, cap, clipped share, grader. It holds no text of a problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jinja2

from phloem.config import EvaluateConfig
from phloem.evaluate.benchmarks import Problems
from phloem.evaluate.identity import digest_of
from phloem.evaluate.predictions import Prediction
from phloem.evaluate.statistics import Figures
from phloem.files import plain, to_json

__all__ = ["report_of", "write_reports"]


def report_of(
    config: EvaluateConfig,
    problems: Sequence[Problems],
    figures: Mapping[str, Figures],
    prompts: Mapping[str, str],
    table: Mapping[str, Any],
    parameters: int,
) -> dict[str, Any]:
    """The content of report.json.

    Args:
        config: the settings.
        problems: of each benchmark.
        figures: by benchmark.
        prompts: by benchmark, the whole prompt as the model is given it, with `{problem}` in the problem's place.
        table: what decides the figures (`identity`).
        parameters: of the model.
    """
    return {
        "kind": "phloem evaluation",
        "fingerprint": digest_of(table),
        "model": {
            "path": config.model.path,
            "fingerprint": table["model.fingerprint"],
            "parameters": parameters,
            "dtype": config.model.dtype,
        },
        "sampling": {
            "samples": config.sample.n,
            "temperature": config.sample.temperature,
            "top_p": config.sample.top_p,
            "top_k": config.sample.top_k,
            "engine": config.sample.engine,
            "cap": config.sample.max_tokens,
            "seed": config.seed,
        },
        "prompt": asdict(config.prompt),
        "graders": _below(table, "grader."),
        "packages": _below(table, "packages."),
        "benchmarks": {
            part.benchmark.name: _benchmark(part, figures[part.benchmark.name], prompts[part.benchmark.name])
            for part in problems
        },
    }


def _below(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in table.items() if name.startswith(prefix)}


def _benchmark(part: Problems, figures: Figures, prompt: str) -> dict[str, Any]:
    vote = figures.vote
    return {
        "title": part.benchmark.title,
        "source": part.source,
        "grader": part.benchmark.grader,
        "problems": len(part.examples),
        "available": part.available,
        "problems_digest": part.digest,
        "prompt": prompt,
        "mean": asdict(figures.mean),
        "pass_at": {str(k): asdict(found) for k, found in figures.pass_at.items()},
        "vote": None if vote is None else {**asdict(vote[0]), "tied_problems": vote[1]},
        "clipped_share": figures.clipped_share,
        "no_answer_share": figures.no_answer_share,
        "unscored_share": figures.unscored_share,
        "verdicts": dict(figures.verdicts),
        "mean_tokens": figures.tokens,
        "by_problem": [_problem(prediction) for prediction in figures.predictions],
    }


def _problem(prediction: Prediction) -> dict[str, Any]:
    rewards = [s.reward for s in prediction.samples if s.reward is not None]
    return {
        "id": prediction.id,
        "mean": sum(rewards) / len(rewards) if rewards else None,
        "verdicts": [str(s.status) for s in prediction.samples],
        "clipped": sum(s.clipped for s in prediction.samples),
        "tokens": [s.tokens for s in prediction.samples],
    }


def write_reports(report: Mapping[str, Any]) -> dict[str, str]:
    """The report's files by name: report.json, report.md, report.html."""
    values = plain(report)
    return {
        "report.json": to_json(report, indent=1, ensure_ascii=False),
        "report.md": _rendered("report.md.j2", values, html=False),
        "report.html": _rendered("report.html.j2", values, html=True),
    }


def _rendered(template: str, report: Mapping[str, Any], *, html: bool) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("phloem.evaluate", "templates"),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"figure": _figure, "share": _share, "ks": _some_ks, "fence": _fence}
    return environment.get_template(template).render(r=report)


def _figure(value: float | None) -> str:
    """Three decimals; a dash for what is not known."""
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _some_ks(found: Mapping[str, Any]) -> list[str]:
    """The k of pass@k that a table shows: powers of two, and the largest."""
    largest = max(map(int, found), default=0)
    return [k for k in found if int(k) == largest or int(k).bit_count() == 1]


def _fence(text: str) -> str:
    """A Markdown fence longer than any in the text."""
    longest = max((len(run) for run in text.replace("\n", " ").split() if set(run) == {"`"}), default=0)
    inner = max((len(line) - len(line.lstrip("`")) for line in text.splitlines()), default=0)
    return "`" * max(3, longest + 1, inner + 1)
