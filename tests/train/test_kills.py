"""Kill -9 at random moments, saves included (benchmarks/kill_resume.py does it twenty times to whole commands)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, time

import pytest
from process_work import plain_run
from several import Died, several
from short_runs import is_saving, metrics
from tiny_models import save_tiny_model

from phloem import CreditConfig, EvaluationConfig, ModelConfig, OptimConfig, RunConfig, SampleConfig, TrainConfig

pytestmark = pytest.mark.model

STEPS, KILLS = 16, 4


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("kills")
    return TrainConfig(
        model=ModelConfig(path=str(save_tiny_model(folder / "model"))),
        sample=SampleConfig(thoughts=2, answers=2, thought_tokens=6, answer_tokens=4),
        credit=CreditConfig(preset="grpo-ma", beta=0.05),
        optim=OptimConfig(steps=STEPS, prompts_per_step=2, lr=1e-3, schedule="linear", warmup_steps=2),
        evaluation=EvaluationConfig(prompts=2, samples=2, every=4, prompts_between=2),
        run=RunConfig(folder=str(folder / "run"), view="none", checkpoint_every=1),
    )


def moment(run: Path, draw: random.Random) -> Callable[[], bool]:
    """True while a checkpoint is being written, or some time after the first one of this life."""
    saving, left = draw.random() < 0.5, draw.uniform(0.0, 0.1)
    before, since, begun = set(run.glob("checkpoints/step-*")), [], time()

    def now() -> bool:
        if saving:
            return is_saving(run, begun)
        if not since and set(run.glob("checkpoints/step-*")) - before:
            since.append(monotonic())
        return bool(since) and monotonic() - since[0] > left

    return now


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_killed_at_random_moments_ends_as_one_left_alone(config, tmp_path, size):
    def in_folder(name: str) -> TrainConfig:
        return replace(config, run=replace(config.run, folder=str(tmp_path / name)))

    alone, killed, draw = tmp_path / "alone", tmp_path / "killed", random.Random(size)
    several(size, plain_run, in_folder("alone"))
    for _ in range(KILLS):
        with pytest.raises(Died, match="all were killed"):
            several(size, plain_run, in_folder("killed"), until=moment(killed, draw))
    assert not (killed / "summary.json").exists()
    several(size, plain_run, in_folder("killed"))
    files = [str(path.relative_to(alone)) for path in alone.rglob("*.safetensors")]
    assert len(files) == 5  # model, best, and of the checkpoint model, optimiser and reference
    for name in (*files, "rollouts.jsonl"):
        assert (killed / name).read_bytes() == (alone / name).read_bytes(), name
    steps = [record["step"] for record in metrics(killed, "train")]
    assert steps == list(range(1, STEPS + 1))
