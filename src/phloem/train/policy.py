"""The policy of a run: model and tokenizer, how prompts and completions are read, how it is saved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from phloem.config import LoraConfig, TrainConfig
from phloem.files import replaced_folder
from phloem.forward import prepare
from phloem.forward.shell import Shell
from phloem.models import decode_completion, decode_raw, encode_completion, encode_prompt, eos_ids, load_model
from phloem.tasks.task import Example
from phloem.train.ranks import Ranks
from phloem.train.sharded import shard, whole

__all__ = ["Policy", "write_model"]


@dataclass(frozen=True, eq=False)
class Policy:
    """A model ready for trees, with its tokenizer and the device it lives on.

    `model` is whole on every process; it is sampled from and saved. `sharded` is the one that is trained where its
    weights are spread over the processes, else None.
    """

    model: Any
    tokenizer: Any
    accelerator: Accelerator
    config: TrainConfig
    engine: str
    sharded: Shell | None = None

    @classmethod
    def load(cls, config: TrainConfig, announce: Callable[[str], None], saved: Path | None = None) -> Policy:
        """Loads and prepares the model that `config.model` names, or the one of a folder that `save` filled.

        Raises:
            PhloemError: it cannot be loaded, has nothing to train, or the tree forward cannot serve it.
        """
        # Precision is ours (`autocast`): accelerate fixes it once per process, and a process may train twice.
        accelerator = Accelerator()
        source = config.model
        if saved is not None:  # adapters and their settings are in the folder
            source = replace(source, path=str(saved), lora=LoraConfig())
        model, tokenizer = load_model(source, device=accelerator.device)
        engine = prepare(model, config.model.attention, announce=announce)
        return cls(model, tokenizer, accelerator, config, engine)

    def spread(self, ranks: Ranks) -> Policy:
        """The policy as it is trained: with sharded weights beside the whole ones, if the processes are to share them.

        The whole model stays on every process, without gradients and AdamW state, to be sampled from and saved.
        """
        return replace(self, sharded=shard(self.model, self.device, ranks.size)) if ranks.sharded else self

    @property
    def trainee(self) -> Any:
        """What forwards and backwards of training run on."""
        return self.model if self.sharded is None else self.sharded

    @property
    def updated(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that the optimiser updates, by name; spread over the processes if the weights are."""
        if self.sharded is None:
            return self.named
        return {name: p for name, p in self.sharded.module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def publish(self) -> None:
        """Takes sharded weights over into the whole model; to be called by all processes after an update."""
        for name, parameter in self.updated.items() if self.sharded is not None else ():
            self.named[name].copy_(whole(parameter))

    @cached_property
    def named(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @cached_property
    def trained(self) -> list[torch.nn.Parameter]:
        """The parameters that are trained."""
        return list(self.named.values())

    @property
    def saved_bytes(self) -> int:
        """About what `save` writes: of a model with adapters the adapters only."""
        adapted = hasattr(self.model, "peft_config")
        return sum(p.nbytes for p in (self.trained if adapted else self.model.parameters()))

    @property
    def checkpoint_bytes(self) -> int:
        """About the bytes of a checkpoint: what `save` writes, and AdamW's two moments."""
        return self.saved_bytes + 2 * sum(p.nbytes for p in self.trained)

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Every id that ends a completion."""
        return eos_ids(self.model, self.tokenizer)

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    def autocast(self) -> torch.autocast:
        """Matrix products of a forward in bfloat16, if `model.autocast` asks for it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.model.autocast)

    def backward(self, loss: torch.Tensor) -> None:
        self.accelerator.backward(loss)

    def prompt_ids(self, example: Example) -> np.ndarray:
        """Token ids of an example's prompt, up to where the completion starts."""
        task = self.config.task
        return encode_prompt(
            self.tokenizer, example.prompt, task.system_prompt, task.chat_template, task.chat_template_args
        )

    def demonstration_ids(self, text: str) -> np.ndarray:
        """Token ids of a demonstrated completion, closed by an end-of-sequence id."""
        return encode_completion(self.tokenizer, text, self.config.task.chat_template)

    def text(self, completion: np.ndarray) -> str:
        """A completion as rewards see it."""
        return decode_completion(self.tokenizer, completion, self.end_ids)

    def raw_text(self, ids: np.ndarray) -> str:
        """Token ids as text, special tokens shown."""
        return decode_raw(self.tokenizer, ids)

    def fingerprint(self) -> str:
        """A digest of the trained weights; equal digests mean that nothing was changed."""
        digest = hashlib.blake2b(digest_size=16)
        for p in self.trained:
            digest.update(p.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Writes the policy as transformers (or peft) loads it, aside first and then in place of `path`.

        Raises:
            PhloemError: it cannot be written; what was at `path` is as it was.
        """
        with replaced_folder(path) as aside:
            self.write(aside)

    def write(self, folder: Path) -> None:
        """Writes the policy into a folder; a kill on the way leaves half of it."""
        write_model(self.model, self.tokenizer, folder)


def write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Writes a model and its tokenizer as transformers (or peft) loads them: without the attention back end of ours."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    own = inner.config._attn_implementation
    inner.config._attn_implementation = "sdpa"
    try:
        model.save_pretrained(folder)
    finally:
        inner.config._attn_implementation = own
    tokenizer.save_pretrained(folder)
