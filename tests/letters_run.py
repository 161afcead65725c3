"""A run of ten steps that a tiny model learns in: write the letter a, close the thought, and again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_models import tiny_model
from tiny_tokenizers import QWEN, byte_level
from transformers import PreTrainedTokenizerFast

from phloem import (
    CreditConfig,
    EvaluationConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    TrainConfig,
)
from phloem.tasks import Example, ExampleTask
from phloem.train import RunResult, train

ALPHABET = "".join(sorted({*"abcdefgh</>?", *"user\nassistant", "Ċ"}))
HEADS_OF_32 = {"hidden_size": 128, "intermediate_size": 128}
"""A shape that vLLM's kernels on CPUs take."""
SHAPE: dict[str, Any] = {
    "thoughts": 4,
    "answers": 2,
    "fork_at": "<",
    "thought_tokens": 6,
    "answer_tokens": 4,
}


def letters_tokenizer() -> PreTrainedTokenizerFast:
    return byte_level(QWEN, alphabet=ALPHABET)


def letters_run(folder: Path, sample: dict[str, Any], kind: str = "llama-tied", **model: Any) -> RunResult:
    """Trains in `folder/run`; `sample` changes settings of that section, `model` of the model's."""
    tokenizer = letters_tokenizer()
    start = tiny_model(kind, vocab_size=len(tokenizer), initializer_range=0.05, **HEADS_OF_32)
    start.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    problems = [Example(str(n), "abcdefgh"[n], "a") for n in range(8)]
    config = TrainConfig(
        model=ModelConfig(path=str(folder / "model"), **model),
        sample=SampleConfig(
            **({"thoughts": 4, "answers": 2, "fork_at": "<", "thought_tokens": 6, "answer_tokens": 4} | sample)
        ),
        credit=CreditConfig(preset="grpo-ma"),
        optim=OptimConfig(steps=10, prompts_per_step=4, lr=1e-3),
        evaluation=EvaluationConfig(prompts=8, samples=2),
        run=RunConfig(folder=str(folder / "run"), view="none", save_model=False),
    )
    return train(config, ExampleTask("letters", problems, problems, reward=share_of_a))


def share_of_a(completion: str, answer: Any, row: Any) -> float:
    return completion.count("a") / max(1, len(completion))


def gaps(result: RunResult) -> list[float]:
    """The gap of each training step that trained something."""
    return [step["gap"] for step in steps(result) if step["gap"] is not None]


def steps(result: RunResult) -> list[dict[str, Any]]:
    """The figures of the training steps."""
    lines = (result.folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "train"]
