"""A tiny random model with a byte-level tokenizer, for studies cut down to seconds: no download, nothing learnt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from phloem.config import CreditConfig, EvaluationConfig, ModelConfig, OptimConfig, RunConfig, SampleConfig, TrainConfig
from phloem.tasks import Example, ExampleTask

if TYPE_CHECKING:
    from phloem.studies.matrix import Cell

__all__ = ["save_tiny_model", "tiny_config", "tiny_task"]

LETTERS = "abcd<?"
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def save_tiny_model(folder: Path) -> None:
    """Writes a two-layer Llama with random weights and its tokenizer of eight ids."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {piece: i for i, piece in enumerate(["<s>", "</s>", *LETTERS])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=128,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
            initializer_range=0.1,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny_task() -> ExampleTask:
    """Pays the share of letters that are an `a`."""

    def share(completion: str, answer: str, row: Any) -> float:
        return completion.count("a") / max(1, len(completion))

    problems = [Example(str(n), "abcd"[n % 4], "a") for n in range(8)]
    return ExampleTask("letters", problems, problems, share, gold_template="{answer}")


def tiny_config(cell: Cell, model: Path, folder: Path) -> TrainConfig:
    """Two steps of a cell on the tiny model."""
    return TrainConfig(
        model=ModelConfig(path=str(model)),
        sample=SampleConfig(
            thoughts=cell.thoughts, answers=cell.answers, fork_at="<", thought_tokens=5, answer_tokens=4
        ),
        credit=CreditConfig(preset=cell.rule),
        optim=OptimConfig(steps=2, prompts_per_step=2, lr=1e-3),
        evaluation=EvaluationConfig(prompts=4, samples=2, every=1, prompts_between=4),
        run=RunConfig(folder=str(folder), seed=cell.seed, view="none", save_model=False, checkpoint_every=0),
    )
