"""The end of a run: the summary in the terminal, summary.json and the picture of the curves."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from typing import TYPE_CHECKING, Any

from phloem.analysis.plots import draw_curves, read_metrics
from phloem.config import TrainConfig
from phloem.evaluate.held_out import HeldOut
from phloem.means import known_mean
from phloem.train.folder import RunFolder
from phloem.train.view import View

if TYPE_CHECKING:
    from phloem.train.loop import RunResult

__all__ = ["report"]

SECONDS = ("seconds/sample", "seconds/reward", "seconds/update")


def report(result: RunResult, config: TrainConfig, folder: RunFolder, view: View) -> None:
    """Prints the figures of a run, writes summary.json and draws curves.png."""
    records = read_metrics(folder.path / "metrics.jsonl")
    steps = [r for r in records if r["kind"] == "train"]
    averaged = ("within_variance", "between_variance", "token_ratio", *SECONDS)
    summary = {
        "steps": result.steps,
        "before": _held_out(result.before),
        "after": _held_out(result.after),
        "gain": None if result.gain is None else asdict(result.gain),
        "constant_baseline": result.constant_baseline,
        **{key: known_mean([step.get(key) for step in steps]) for key in averaged},
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
    variances = summary["within_variance"], summary["between_variance"]
    if not all(map(isnan, variances)):
        within, between = (_shown(variance, ".3f") for variance in variances)
        lines.append(f"variance of the reward within thoughts {within}, between thoughts {between} (mean over steps)")
    seconds = ", ".join(f"{key.removeprefix('seconds/')} {_shown(summary[key], '.2f')}" for key in SECONDS)
    lines.append(f"token ratio {_shown(summary['token_ratio'], '.2f')}; seconds per step: {seconds}")
    lines.append(f"everything is in {result.folder}")
    return lines


def _shown(value: float, form: str) -> str:
    return "unknown" if isnan(value) else format(value, form)


def _held_out(found: HeldOut | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "reward": found.mean,
        "standard_error": found.standard_error,
        "prompts": len(found.ids),
        "truncated": found.truncated,
    }
