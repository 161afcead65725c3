"""The end of a run: the summary in the terminal, summary.json and the picture of the curves."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from phloem.analysis.plots import draw_curves, read_metrics
from phloem.config import TrainConfig
from phloem.train.folder import RunFolder
from phloem.train.view import View

if TYPE_CHECKING:
    from phloem.train.loop import RunResult

__all__ = ["report"]


def report(result: RunResult, config: TrainConfig, folder: RunFolder, view: View) -> None:
    """Prints the figures of a run, writes summary.json and draws curves.png."""
    records = read_metrics(folder.path / "metrics.jsonl")
    steps = [r for r in records if r["kind"] == "train"]
    summary = {
        "steps": result.steps,
        "before": _held_out(result.before),
        "after": _held_out(result.after),
        "gain": None if result.gain is None else asdict(result.gain),
        "constant_baseline": result.constant_baseline,
        "within_variance": _average(steps, "within_variance"),
        "between_variance": _average(steps, "between_variance"),
        "token_ratio": _average(steps, "token_ratio"),
        **{f"seconds/{part}": _average(steps, f"seconds/{part}") for part in ("sample", "reward", "update")},
    }
    folder.write_json("summary.json", summary)
    name = f"{config.task.name}, {config.credit.preset}, {config.sample.shape}"
    draw_curves(records, folder.path / "curves.png", f"{name}, seed {config.run.seed}")
    for line in _lines(result, config, summary):
        view.say(line)


def _lines(result: RunResult, config: TrainConfig, summary: dict[str, Any]) -> list[str]:
    lines = ["", f"{result.steps} steps done"]
    if result.before is not None and result.after is not None and result.gain is not None:
        shape = f"{len(result.before.ids)} held-out prompts x {config.evaluation.samples} samples"
        lines += [
            f"mean reward on {shape}, with its 95 % interval",
            f"  before training      {result.before.mean:.3f} ± {1.96 * result.before.standard_error:.3f}",
            f"  after training       {result.after.mean:.3f} ± {1.96 * result.after.standard_error:.3f}",
            f"  gain, paired         {result.gain} (95 % bootstrap interval over prompts)",
        ]
    if result.constant_baseline is not None:
        lines.append(f"  always one answer    {result.constant_baseline:.3f}")
    if summary["within_variance"] is not None or summary["between_variance"] is not None:
        within, between = (_shown(summary[f"{where}_variance"], ".3f") for where in ("within", "between"))
        lines.append(f"variance of the reward within thoughts {within}, between thoughts {between} (mean over steps)")
    seconds = ", ".join(f"{part} {summary[f'seconds/{part}']:.2f}" for part in ("sample", "reward", "update"))
    lines.append(f"token ratio {_shown(summary['token_ratio'], '.2f')}; seconds per step: {seconds}")
    lines.append(f"everything is in {result.folder}")
    return lines


def _shown(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


def _held_out(found: Any) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "reward": found.mean,
        "standard_error": found.standard_error,
        "prompts": len(found.ids),
        "truncated": found.truncated,
    }


def _average(steps: list[dict[str, Any]], key: str) -> float | None:
    values = [r[key] for r in steps if r.get(key) is not None]
    return sum(values) / len(values) if values else None
