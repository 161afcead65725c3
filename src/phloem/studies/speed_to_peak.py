"""Steps, tokens and seconds to the best held-out reward: lambda-GRPO against GRPO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phloem.studies.figures import RULES, finish, panels, seeds
from phloem.studies.intervals import Estimate, difference, mean_of_seeds
from phloem.studies.matrix import HEADLINE, SPEED, readings
from phloem.studies.study import Bench, Figure, Finding, Study, Verdict, not_run, sided

__all__ = ["STUDY"]

COMPARED = ("grpo", "lambda-grpo", "lambda-grpo-sn")
OPEN_RS = """phloem train --config recipes/lambda-grpo.yaml --model.path deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B \\
  --model.lora.rank 64 --model.lora.alpha 128 --sample.thoughts 6 --sample.temperature 0.75 \\
  --sample.thought_tokens 1000 --sample.answer_tokens 200 --optim.lr 1e-6 --optim.steps 1000 \\
  --task.name data --task.args.path knoveleng/open-rs --task.args.prompt problem --task.args.reward math
# on a GPU of 24 GB; then once more with --credit.preset grpo, and `phloem evaluate` on both"""


def measure(bench: Bench) -> dict[str, Any]:
    runs = readings(bench, [c for c in [*HEADLINE, *SPEED] if c.rule in COMPARED])
    rows = []
    for run in runs:
        rewards = [e["reward"] for e in run.evaluations]
        at = int(run.evaluations[int(np.argmax(rewards))]["step"])
        rows.append(
            {
                "rule": run.cell.rule,
                "seed": run.cell.seed,
                "peak": max(rewards),
                "peak_step": at,
                "peak_tokens": run.tokens_at(at),
                "peak_seconds": run.seconds_at(at),
                "last": run.last,
                "steps": [e["step"] for e in run.evaluations],
                "rewards": rewards,
            }
        )
    return {"runs": rows}


def _of(measured: Mapping[str, Any], rule: str, key: str) -> list[float]:
    return [float(r[key]) for r in measured["runs"] if r["rule"] == rule]


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    findings = []
    claims = (
        ("peak_step", "lambda-GRPO reaches its best held-out reward in fewer steps than GRPO", ".1f", -1),
        ("peak_seconds", "and in less time", ".0f", -1),
        ("peak", "and the best is higher", ".3f", 1),
    )
    published = {"peak": "mean of five benchmarks .484 to .558 (1.5B, beta 0), .539 to .574 (beta .04)"}
    for key, claim, form, sign in claims:
        grpo, lam = _of(measured, "grpo", key), _of(measured, "lambda-grpo", key)
        if not grpo or not lam:
            findings.append(not_run(claim, published.get(key, "faster (curves)"), "speed-to-peak"))
            continue
        gap = difference(grpo, lam)
        findings.append(
            Finding(
                claim,
                published.get(key, "faster (curves)"),
                f"GRPO {np.mean(grpo):{form}}, lambda-GRPO {np.mean(lam):{form}}; difference {gap.shown('+' + form)}",
                sided(gap, sign),
                note="the peak of four noisy evaluations (64 prompts x 2 samples): it lies higher and later than the "
                "truth, for both rules alike."
                if key == "peak_step"
                else "",
            )
        )
    findings.append(
        Finding(
            "on OpenRS with a 1.5B model, validation every 25 steps, five benchmarks",
            "see above",
            "-",
            Verdict.NOT_TESTED,
            recipe=OPEN_RS,
        )
    )
    return findings


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    present = [rule for rule in COMPARED if _of(measured, rule, "peak")]
    if not present:
        return []
    figure, (curve, peak) = panels(2, width=9.5)
    for i, rule in enumerate(present):
        colour, marker, label = RULES[rule]
        mine = [r for r in measured["runs"] if r["rule"] == rule]
        points = min(len(r["steps"]) for r in mine)
        found: list[Estimate] = [mean_of_seeds([r["rewards"][p] for r in mine]) for p in range(points)]
        x = [s + 0.1 * (i - 1) for s in mine[0]["steps"][:points]]
        curve.plot(x, [e.value for e in found], color=colour, marker=marker, label=f"{label} ({seeds(len(mine))})")
        curve.fill_between(x, [e.low for e in found], [e.high for e in found], color=colour, alpha=0.12, linewidth=0)
        peak.plot(_of(measured, rule, "peak_seconds"), _of(measured, rule, "peak"), marker, color=colour, label=label)
    curve.set(xlabel="step", ylabel="held-out reward", title="bands: 95 % over seeds")
    curve.legend()
    peak.set(xlabel="seconds of training to the peak", ylabel="best held-out reward", title="a point per seed")
    caption = "Held-out reward over steps, and where each run's best evaluation lies."
    return [Figure(finish(figure, folder / "speed-to-peak.png"), caption)]


STUDY = Study(
    name="speed-to-peak",
    title="Steps to the peak",
    question="""
lambda-GRPO (arXiv 2509.21154) is said to reach a higher validation reward than GRPO in fewer steps. Both rules (and the
self-normalised lambda) on two-digit sums, 16 plain rollouts a prompt, equal learning rate, from one checkpoint.
""",
    departures="""
- AdamW divides by the size of recent gradients, so the shrunk update of lambda-GRPO is no shorter a step here; with the
  published optimiser (Adam too) this is the same.
""",
    budget="Fifteen runs of the matrix.",
    measure=measure,
    judge=judge,
    draw=draw,
)
