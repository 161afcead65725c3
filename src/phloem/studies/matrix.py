"""The training runs that studies share: rule x K x M x seed on one short task, from one cold-started checkpoint.

Runs are trained by `phloem.train` into run folders, most wanted first; a folder with a summary is done and is only
read. Equal budgets mean equal sampled tokens, so shapes with larger groups take fewer steps.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phloem.config import (
    ColdStartConfig,
    CreditConfig,
    EvaluationConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    TaskConfig,
    TrainConfig,
)
from phloem.kinds import PhloemError
from phloem.studies.intervals import difference
from phloem.studies.readings import Reading, read
from phloem.studies.study import Bench, Figure, Finding, Study, not_run, sided

__all__ = ["HEADLINE", "PLAN", "STUDY", "Cell", "checkpoint", "readings"]

TOKENS = 15_680
"""Sampled tokens of a run: 20 steps of 4 prompts under 4 thoughts x 4 answers."""
THOUGHT, ANSWER = 13, 9
"""Tokens of a thought and of an answer that the cold start teaches; only the number of steps depends on them."""
PROMPTS = 4
"""Prompts of a step."""


@dataclass(frozen=True)
class Cell:
    """One training run.

    Attributes:
        rule: a preset.
        thoughts, answers: K and M.
        seed: of everything after the cold start.
        task: `sums` or `words` (word problems, for the structure of longer completions).
        steps: of the run; None: as many as the token budget pays for.
    """

    rule: str
    thoughts: int
    answers: int
    seed: int
    task: str = "sums"
    steps: int | None = None

    @property
    def shape(self) -> str:
        """In the paper's notation."""
        return f"T{self.thoughts}A{self.answers}"

    @property
    def name(self) -> str:
        tail = "" if self.steps is None else f"-{self.steps}steps"
        return f"{self.task}-{self.rule}-{self.shape}{tail}-seed{self.seed}"

    def planned_steps(self) -> int:
        """Steps that sample about TOKENS tokens."""
        group = self.thoughts * THOUGHT + self.thoughts * self.answers * ANSWER
        return self.steps or max(1, round(TOKENS / (PROMPTS * group)))


def _over_seeds(seeds: Sequence[int], *shapes: tuple[str, int, int], **more: Any) -> list[Cell]:
    """Seeds outermost, so that a plan broken off has every shape equally often."""
    return [Cell(rule, k, m, seed, **more) for seed in seeds for rule, k, m in shapes]


HEADLINE = _over_seeds(range(3), ("grpo", 16, 1), ("lambda-grpo", 16, 1), ("grpo-ma", 4, 4), ("lambda-grpo-ma", 4, 4))
SHAPES = _over_seeds(range(3), ("grpo", 4, 1), ("grpo-ma", 8, 2), ("grpo-ma", 8, 4))
ANSWERS = _over_seeds(
    range(3),
    *(("grpo-ma", 4, m) for m in (1, 2, 6, 8)),
    ("grpo-ma", 2, 8),
    ("grpo-ma", 16, 1),
)
SPEED = [
    *_over_seeds((3, 4), ("grpo", 16, 1), ("lambda-grpo", 16, 1)),
    *_over_seeds(range(5), ("lambda-grpo-sn", 16, 1)),
]
STRUCTURE = [
    cell
    for seed in range(3)
    for cell in (
        Cell("grpo", 6, 1, seed, steps=30),
        Cell("grpo", 36, 1, seed, steps=15),
        Cell("grpo", 6, 1, seed, "words", 20),
        Cell("grpo", 36, 1, seed, "words", 10),
    )
]
PLAN = [*HEADLINE, *SHAPES, *ANSWERS, *SPEED, *STRUCTURE]
"""Every run, most wanted first."""


def readings(bench: Bench, cells: Sequence[Cell]) -> list[Reading]:
    """The runs of these cells; those that are missing are trained first, while there is time, if the bench
    trains.

    A quick bench trains two steps of a tiny random model for the first seed of each shape.
    """
    found = []
    for cell in _quick_cells(cells) if bench.quick else cells:
        folder = bench.work / "runs" / cell.name
        if not (folder / "summary.json").exists():
            if bench.time_is_over or not bench.trains:
                continue
            try:
                _train(cell, folder, bench)
            except PhloemError as error:
                bench.say(f"{cell.name} failed, and will be tried again: {error}")
                continue
        found.append(read(folder, cell))
    return found


def _quick_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The first six shapes with one seed each, and a second seed of the first of them."""
    first: dict[tuple[str, str, str], Cell] = {}
    for cell in cells:
        first.setdefault((cell.rule, cell.shape, cell.task), cell)
    kept = list(first.values())[:6]
    again = [c for c in cells if (c.rule, c.shape, c.task) == (kept[0].rule, kept[0].shape, kept[0].task)]
    return [*kept, *again[1:2]]


def _train(cell: Cell, folder: Path, bench: Bench) -> None:
    from phloem.train.loop import train

    shutil.rmtree(folder, ignore_errors=True)  # what a killed run left
    model = checkpoint(bench)
    bench.say(f"training {cell.name}")
    if bench.quick:
        from phloem.studies.tiny import tiny_config, tiny_task

        train(tiny_config(cell, model, folder), tiny_task())
    else:
        train(config_of(cell, model, folder))
    gc.collect()  # a model and its optimiser hold each other in cycles, and the next run brings its own
    shutil.rmtree(folder / "best", ignore_errors=True)  # weights that no study reads


def config_of(cell: Cell, model: Path, folder: Path) -> TrainConfig:
    """The settings of a run."""
    steps = cell.planned_steps()
    words = cell.task == "words"
    return TrainConfig(
        model=ModelConfig(path=str(model), autocast=True),
        task=TaskConfig(name="reasoning-gym:gsm_symbolic", format_weight=0.5, held_out_size=64, train_size=256)
        if words
        else TaskConfig(name="sums", args={"digits": 2}, held_out_size=64),
        sample=SampleConfig(
            thoughts=cell.thoughts,
            answers=cell.answers,
            thought_tokens=64 if words else 32,
            answer_tokens=24 if words else 16,
            dtype="bfloat16",
        ),
        credit=CreditConfig(preset=cell.rule),
        optim=OptimConfig(steps=steps, prompts_per_step=1 if words else PROMPTS, lr=1e-5, warmup_steps=2),
        evaluation=EvaluationConfig(
            prompts=16 if words else 64, samples=2, every=0 if words else max(1, round(steps / 3)), prompts_between=64
        ),
        run=RunConfig(folder=str(folder), seed=cell.seed, view="plain", save_model=False, checkpoint_every=0),
    )


def checkpoint(bench: Bench) -> Path:
    """The folder of the policy that every run starts from; made once.

    SmolLM2-135M-Instruct after 20 supervised steps on two-digit sums; a tiny random model where the bench is quick.
    """
    folder = bench.work / "checkpoint"
    if (folder / "config.json").exists():
        return folder
    if bench.quick:
        from phloem.studies.tiny import save_tiny_model

        save_tiny_model(folder)
        return folder
    from phloem import tasks
    from phloem.train.cold_start import cold_start, demonstration_rows
    from phloem.train.policy import Policy

    config = TrainConfig(
        model=ModelConfig(autocast=True),
        task=TaskConfig(name="sums", args={"digits": 2}),
        cold_start=ColdStartConfig(steps=20, batch_size=16, lr=3e-5),
    )
    bench.say("cold start: 20 supervised steps")
    policy = Policy.load(config, bench.say)
    task = tasks.get(config.task, 0)
    rows = demonstration_rows(task.train, policy.prompt_ids, policy.demonstration_ids)
    losses = list(cold_start(policy.model, rows, config.cold_start, policy, 0))
    bench.say(f"cold start done, loss {losses[0]:.3f} to {losses[-1]:.3f}")
    policy.model.eval()
    policy.save(folder)
    return folder


# ---------------------------------------------------------------------------------------------- as a study


def measure(bench: Bench) -> dict[str, Any]:
    found = readings(bench, PLAN)
    rows = [
        {
            "rule": r.cell.rule,
            "shape": r.cell.shape,
            "task": r.cell.task,
            "seed": r.cell.seed,
            "steps": len(r.steps),
            "gain": r.gain,
            "sampled_tokens": int(r.tokens[-1]),
            "seconds": float(r.seconds[-1]),
            "evaluations": [[e["step"], e["reward"]] for e in r.evaluations],
            "tokens_at": [r.tokens_at(e["step"]) for e in r.evaluations],
        }
        for r in found
    ]
    return {"runs": rows, "planned": len(PLAN)}


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    pairs = (
        ("lambda-GRPO gains more than GRPO", ("grpo", "T16A1"), ("lambda-grpo", "T16A1"), "see speed-to-peak"),
        (
            "GRPO-MA gains more than GRPO",
            ("grpo", "T16A1"),
            ("grpo-ma", "T4A4"),
            "mean of five tasks 68.45 to 68.59 (3B), 68.47 to 71.62 (7B), arXiv 2608.01593",
        ),
    )
    findings = []
    for claim, *kinds, published in pairs:
        claim = f"{claim} at equal sampled tokens"
        one, two = ([r["gain"] for r in measured["runs"] if (r["rule"], r["shape"]) == kind] for kind in kinds)
        if not one or not two:
            findings.append(not_run(claim, published, "matrix --minutes 60"))
            continue
        gap = difference(one, two)
        ours = f"gain {np.mean(one):+.3f} and {np.mean(two):+.3f}; difference {gap.shown('+.3f')}"
        findings.append(Finding(claim, published, ours, sided(gap, 1)))
    return findings


def draw(measured: Mapping[str, Any], folder: Path) -> list[Figure]:
    from phloem.studies.matrix_figures import curves

    return curves(measured["runs"], folder)


def tables(measured: Mapping[str, Any]) -> str:
    from phloem.studies.matrix_figures import gains

    return gains(measured["runs"])


STUDY = Study(
    name="matrix",
    title="The shared training runs",
    question="""
Rule x K thoughts x M answers x seed on two-digit sums: SmolLM2-135M-Instruct, one cold start of 20 supervised steps
shared by all runs, 4 prompts a step, AdamW at 1e-5 after 2 steps of warm-up, as many steps as 15,680 sampled tokens pay
for (20 at 4 x 4, 11 at 16 x 1). Held-out reward on 64 prompts x 2 samples, before, after and twice in between. Seven
studies read these runs.
""",
    departures="""
- The papers train 1B to 7B models for hundreds of steps; these runs take minutes, so that there can be seeds.
- The seeds differ in prompts, order and sampling; the checkpoint they start from is one.
- The kept runs were trained on one core each with other work on the machine: their seconds compare shapes roughly.
""",
    budget="About two and a half minutes a run on one core: 12 runs of the four rules in half an hour, all of the plan "
    "in about two and a half hours, in pieces of any length (`--minutes`).",
    measure=measure,
    judge=judge,
    draw=draw,
    tables=tables,
)
