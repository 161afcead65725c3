"""Three ways to the same gradient: on trees, as rows, and by TRL's GRPOTrainer.

The loss is the same (rule `dapo`: advantages over the group's standard deviation, one normaliser for all tokens, ratio
clipped at 0.8 and 1.28), so that gradients can be compared. A side is called once per measurement: forward and
backward, no optimiser step. Gradients are left in the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from phloem import credit, presets
from phloem.forward import logprobs, pack
from phloem.forward.rows_batched import row_batches
from phloem.loss import surrogate
from phloem.tree import Group

__all__ = ["DTYPES", "as_rows", "autocast_of", "by_trl", "on_trees", "trl_trainer"]

DTYPES = ("float32", "bfloat16 autocast", "bfloat16")
RULE = presets.get("dapo")

Side = Callable[[], None]


def autocast_of(dtype: str) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16 if the name says so; weights and the rest as they are."""
    return torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16 autocast")


def on_trees(model: torch.nn.Module, group: Group, dtype: str) -> Side:
    """Tree built, packed, run: what an update does with a group."""

    def run() -> None:
        found = credit.assign(group, RULE)
        with autocast_of(dtype):
            now_E = logprobs(model, pack([found.tree])).logprobs_E
        trained = found.tree.sampled_T
        c_pos, c_neg = (torch.from_numpy(c[trained]).float() for c in (found.c_pos_T, found.c_neg_T))
        surrogate(now_E, now_E.detach(), c_pos, c_neg, RULE.clip_low, RULE.clip_high).sum().backward()

    return run


def as_rows(model: torch.nn.Module, group: Group, dtype: str, max_tokens: int) -> Side:
    """Length-sorted micro-batches of at most `max_tokens` tokens."""
    rows = credit.to_rows(credit.assign(group, RULE), group)

    def run() -> None:
        with autocast_of(dtype):
            for batch in row_batches(model, [group], max_tokens=max_tokens):
                with torch.autocast("cpu", enabled=False):
                    gain = np.concatenate([rows[r].weight * rows[r].advantage for _, r in batch.members])
                    c_pos, c_neg = (torch.from_numpy(c).float() for c in (np.maximum(gain, 0), np.minimum(gain, 0)))
                    now_E = batch.logprobs_E
                    loss_E = surrogate(now_E, now_E.detach(), c_pos, c_neg, RULE.clip_low, RULE.clip_high)
                    loss_E.sum().backward()

    return run


def trl_trainer(model: torch.nn.Module, tokenizer: Any, folder: str, dtype: str) -> Any:
    """A GRPOTrainer with the loss of `RULE` around a model of its own."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=dtype == "bfloat16 autocast",
        gradient_checkpointing=False,
        loss_type="dapo",
        epsilon=RULE.clip_low,
        epsilon_high=RULE.clip_high,
        beta=0.0,
        num_generations=2,
        per_device_train_batch_size=2,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["-"] * 2}),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def by_trl(trainer: Any, group: Group, micro_batch: int) -> Side:
    """TRL's own loss on the same rollouts, `micro_batch` rows at a time, longest first."""
    rows = credit.to_rows(credit.assign(group, RULE), group)
    completions = [group.completion(r) for r in range(group.group_size)]
    order = sorted(range(group.group_size), key=lambda r: -len(completions[r]))
    total = torch.tensor(float(sum(map(len, completions))))
    batches = []
    for start in range(0, len(order), micro_batch):
        members = order[start : start + micro_batch]
        width = max(len(completions[r]) for r in members)
        ids = np.zeros((len(members), width), dtype=np.int64)
        mask = np.zeros((len(members), width), dtype=np.int64)
        for b, r in enumerate(members):
            ids[b, : len(completions[r])], mask[b, : len(completions[r])] = completions[r], 1
        prompt = torch.from_numpy(np.tile(group.prompt, (len(members), 1)))
        batches.append({
            "prompt_ids": prompt,
            "prompt_mask": torch.ones_like(prompt),
            "completion_ids": torch.from_numpy(ids),
            "completion_mask": torch.from_numpy(mask),
            "advantages": torch.tensor([float(rows[r].advantage[0]) for r in members]),
            "num_items_in_batch": total,
        })  # fmt: skip

    def run() -> None:
        for inputs in batches:
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(trainer.model, inputs)
            trainer.accelerator.backward(loss)

    return run
