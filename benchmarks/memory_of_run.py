"""Memory of a run over its steps: flat after warm-up, or a leak.

    python benchmarks/memory_of_run.py [--steps 300] [--warm 100] [--model tiny] [--out FILE]

Trains with a checkpoint every 20 steps, an evaluation every 25, rollouts kept and a KL reference, and reads the
resident memory of the process after each step. The slope is that of a least-squares line over the steps after warm-up,
its interval that of a block bootstrap (memory moves in jumps, so neighbouring steps are not independent).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import psutil

from phloem import CreditConfig, EvaluationConfig, ModelConfig, OptimConfig, RunConfig, SampleConfig, TrainConfig
from phloem.tasks import Example, ExampleTask
from phloem.train import train
from phloem.train.folder import RunFolder

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the tiny model and tokenizer are those of the tests
BLOCK = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warm", type=int, default=100)
    parser.add_argument("--model", default="tiny", help="a model as `model.path` names it, or a tiny random one")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    if wanted.steps - wanted.warm < BLOCK:
        parser.error(f"--steps must be at least {BLOCK} above --warm, for one block of the bootstrap")
    with tempfile.TemporaryDirectory() as place:
        resident = run(Path(place), wanted.model, wanted.steps)
    after = resident[wanted.warm :]
    low, high = interval(after)
    result = {
        "model": wanted.model,
        "steps": wanted.steps,
        "warm_up": wanted.warm,
        "resident_mb": [round(float(resident[i]) / 1e6, 1) for i in (0, wanted.warm, -1)],
        "kb_per_step": round(slope(after) / 1e3, 2),
        "kb_per_step_95": [round(low / 1e3, 2), round(high / 1e3, 2)],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    print(json.dumps(result, indent=2))
    if wanted.out:
        wanted.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def run(place: Path, model: str, steps: int) -> np.ndarray:
    """Bytes resident after each step."""
    from tiny_models import save_tiny_model

    if model == "tiny":
        model = str(save_tiny_model(place / "model"))
    resident: list[int] = []
    log = RunFolder.metrics

    def spy(self: RunFolder, record: dict[str, object]) -> None:
        log(self, record)
        if record["kind"] == "train":
            resident.append(psutil.Process().memory_info().rss)

    problems = [Example(str(n), f"{n}?", str(n)) for n in range(64)]
    config = TrainConfig(
        model=ModelConfig(path=model),
        sample=SampleConfig(thoughts=4, answers=2, thought_tokens=24, answer_tokens=8),
        credit=CreditConfig(preset="grpo-ma", beta=0.01),
        optim=OptimConfig(steps=steps, prompts_per_step=4, lr=1e-5),
        evaluation=EvaluationConfig(prompts=8, samples=2, every=25, prompts_between=8),
        run=RunConfig(folder=str(place / "run"), view="none", checkpoint_every=20),
    )
    task = ExampleTask("letters", problems, problems, reward=lambda text, answer, row: float(len(set(text))))
    with patch.object(RunFolder, "metrics", spy):
        train(config, task)
    return np.array(resident, dtype=float)


def slope(values: np.ndarray) -> float:
    """Bytes per step."""
    return float(np.polyfit(np.arange(len(values)), values, 1)[0])


def interval(values: np.ndarray, draws: int = 2000) -> tuple[float, float]:
    """A 95 % interval of the slope, from blocks of residuals drawn again."""
    steps = np.arange(len(values))
    line = np.polyval(np.polyfit(steps, values, 1), steps)
    residual, rng = values - line, np.random.default_rng(0)
    starts = rng.integers(0, len(values) - BLOCK + 1, (draws, -(-len(values) // BLOCK)))
    drawn = (starts[:, :, None] + np.arange(BLOCK)).reshape(draws, -1)[:, : len(values)]
    low, high = np.quantile([slope(line + residual[i]) for i in drawn], [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
