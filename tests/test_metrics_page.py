"""docs/metrics.md defines exactly what a run logs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tiny_models import tiny_model
from tiny_tokenizers import QWEN, byte_level

from phloem import (
    ColdStartConfig,
    CreditConfig,
    EvaluationConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    TrainConfig,
)
from phloem.tasks import Example, ExampleTask
from phloem.train import train

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def defined(kind: str) -> set[str]:
    """The keys in the first column of a kind's tables."""
    section = re.search(rf"^## kind: {kind}$(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert section is not None
    cells = re.findall(r"^\| (`.*?) \|", section[1], re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.model
def test_the_page_defines_every_key_that_a_run_logs_and_no_other(tmp_path):
    tokenizer = byte_level(QWEN)
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    problems = [Example(str(n), f"{n}?", str(n), demonstrations=("<think>x</think>1",)) for n in range(4)]
    task = ExampleTask("letters", problems, problems, reward=lambda text, answer, row: float(len(set(text))))
    train(
        TrainConfig(
            model=ModelConfig(path=str(tmp_path / "model")),
            cold_start=ColdStartConfig(steps=1, batch_size=2),
            sample=SampleConfig(thoughts=2, answers=2, thought_tokens=6, answer_tokens=4),
            credit=CreditConfig(preset="grpo-ma", beta=0.1),
            optim=OptimConfig(steps=1, prompts_per_step=2, updates_per_step=2, lr=1e-3),
            evaluation=EvaluationConfig(prompts=2, samples=2),
            run=RunConfig(folder=str(tmp_path / "run"), view="none", save_model=False),
        ),
        task,
    )
    logged: dict[str, set[str]] = {}
    for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        logged.setdefault(record.pop("kind"), set()).update(record)
    assert logged == {kind: defined(kind) for kind in ("cold_start", "evaluation", "train")}
