"""A task that a tiny model learns in a few steps (write the letter a, close the thought, and again), and runs on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from short_runs import metrics, quick_train
from tiny_models import save_tiny_model
from tiny_tokenizers import QWEN, byte_level
from transformers import PreTrainedTokenizerFast

from phloem import CreditConfig, EvaluationConfig, ModelConfig, OptimConfig, RunConfig, SampleConfig, TrainConfig
from phloem.tasks import Example, ExampleTask
from phloem.train import RunResult

ALPHABET = "".join(sorted({*"abcdefgh</>?", *"user\nassistant", "Ċ"}))
HEADS_OF_32 = {"hidden_size": 128, "intermediate_size": 128}
"""A shape that vLLM's kernels on CPUs take."""


def letters_tokenizer() -> PreTrainedTokenizerFast:
    return byte_level(QWEN, alphabet=ALPHABET)


def share_of_a(completion: str, answer: Any, row: Any) -> float:
    return completion.count("a") / max(1, len(completion))


def letters(reward: Any = share_of_a, count: int = 8) -> ExampleTask:
    """Earns the share of letters that are an `a`; an answer after the tag may be anything."""
    problems = [Example(str(n), "abcdefgh"[n % 8], "a", demonstrations=("<a>ba",)) for n in range(count)]
    return ExampleTask("letters", problems, problems, reward=reward)


def letters_config(model_folder: Path, folder: Path, **sections: Any) -> TrainConfig:
    """Two steps of 2 x 4 rollouts that leave no weights behind; `sections` replaces whole sections."""
    base = TrainConfig(
        model=ModelConfig(path=str(model_folder)),
        sample=SampleConfig(thoughts=4, answers=1, fork_at="<", thought_tokens=4, answer_tokens=4),
        credit=CreditConfig(preset="grpo"),
        optim=OptimConfig(steps=2, prompts_per_step=2, lr=1e-2),
        evaluation=EvaluationConfig(prompts=0),
        run=RunConfig(folder=str(folder), view="none", save_model=False),
    )
    return replace(base, **sections)


def letters_run(folder: Path, sample: dict[str, Any], kind: str = "llama-tied", **model: Any) -> RunResult:
    """Trains in `folder/run`; `sample` changes settings of that section, `model` of the model's."""
    save_tiny_model(folder / "model", letters_tokenizer(), kind, initializer_range=0.05, **HEADS_OF_32)
    shape = {"thoughts": 4, "answers": 2, "fork_at": "<", "thought_tokens": 6, "answer_tokens": 4}
    config = TrainConfig(
        model=ModelConfig(path=str(folder / "model"), **model),
        sample=SampleConfig(**(shape | sample)),
        credit=CreditConfig(preset="grpo-ma"),
        optim=OptimConfig(steps=10, prompts_per_step=4, lr=1e-3),
        evaluation=EvaluationConfig(prompts=8, samples=2),
        run=RunConfig(folder=str(folder / "run"), view="none", save_model=False),
    )
    return quick_train(config, letters())


def gaps(result: RunResult) -> list[float]:
    """The gap of each training step that trained something."""
    return [step["gap"] for step in steps(result) if step["gap"] is not None]


def steps(result: RunResult) -> list[dict[str, Any]]:
    """The figures of the training steps."""
    return metrics(result.folder, "train")
