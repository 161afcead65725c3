"""The model under evaluation: how it is loaded, given prompts and sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from phloem.config import EvaluateConfig, ModelConfig
from phloem.evaluate.identity import weights_digest
from phloem.kinds import ConfigError
from phloem.models import decode_completion, decode_raw, encode_prompt, eos_ids, load_model
from phloem.sample import ForkPlan, Sampler, check_engine, make_sampler
from phloem.tasks.task import Example
from phloem.tree import Group

__all__ = ["Subject", "check_engine"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with its tokenizer, ready to be sampled."""

    model: Any
    tokenizer: Any
    sampler: Sampler
    config: EvaluateConfig

    @classmethod
    def load(cls, config: EvaluateConfig) -> Subject:
        """Loads what `config.model` names, onto the GPU where there is one.

        Raises PhloemError: it cannot be loaded or sampled.
        """
        import torch

        wanted = ModelConfig(path=config.model.path, dtype=config.model.dtype)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model, tokenizer = load_model(wanted, device=device, trainable=False)
        sampler = make_sampler(model, tokenizer, config.sample.as_sample_config(), seed=config.seed)
        return cls(model, tokenizer, sampler, config)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of weights, tokenizer and chat template."""
        return weights_digest(self.model, self.tokenizer)

    @cached_property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        return eos_ids(self.model, self.tokenizer)

    def prompt_ids(self, text: str) -> np.ndarray:
        """Token ids of a worded problem, int64 of shape (P,)."""
        prompt = self.config.prompt
        return encode_prompt(self.tokenizer, text, prompt.system_prompt, prompt.chat_template, prompt.chat_args)

    def shown(self, ids: np.ndarray) -> str:
        """A prompt as the model is given it, special tokens and all."""
        return decode_raw(self.tokenizer, ids)

    def text(self, completion: np.ndarray) -> str:
        """A completion as graders see it."""
        return decode_completion(self.tokenizer, completion, self.end_ids)

    def require_room(self, examples: Sequence[Example], title: str) -> None:
        """Raises ConfigError: a prompt that leaves no room for `sample.max_tokens` in the model's context."""
        context: int | None = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        cap = self.config.sample.max_tokens
        if context is None:
            return
        for example in examples:
            length = len(self.prompt_ids(str(example.prompt)))
            if length + cap > context:
                room = context - length
                remedy = f"Lower sample.max_tokens to {room}" if room > 0 else "Take a model of a longer context"
                raise ConfigError(
                    f"{title}: the prompt of problem {example.id} has {length} tokens; with {cap} for the completion "
                    f"that is over the model's context of {context}. {remedy}"
                )

    def sample(self, prompts: Sequence[np.ndarray], keys: Sequence[tuple[int, ...]]) -> list[Group]:
        """`sample.n` completions of each prompt."""
        draw = self.config.sample
        return self.sampler.sample(prompts, ForkPlan.plain(draw.n, draw.max_tokens), keys)
