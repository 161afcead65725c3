"""What a run would take, before any weight is loaded: processes, packs, memory and disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator

from phloem import presets
from phloem.config import TrainConfig
from phloem.files import size_shown
from phloem.forward.head import KEEP
from phloem.forward.plan import choose_engine
from phloem.models import load_skeleton, load_tokenizer
from phloem.train.fitting import fit_prompts
from phloem.train.folder import RunFolder
from phloem.train.policy import Policy
from phloem.train.prepare import checked_task
from phloem.train.ranks import Ranks
from phloem.train.resume import require_same_run
from phloem.train.speed import expected_plan

__all__ = ["Memory", "dry_run", "memory_of"]


@dataclass(frozen=True)
class Memory:
    """Bytes that one process needs, by what for."""

    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def dry_run(config: TrainConfig, *, resume: bool = False) -> str:
    """Lines about the run that these settings describe, launched as this process was; on the first process only.

    Data and tokenizer are read, weights are not. Lengths are those of full budgets: what a step takes at most.
    `resume`: the run in `config.run.folder` is to go on.

    Raises:
        PhloemError: whatever would stop the run before its weights load.
    """
    if resume:
        require_same_run(config)
    task = checked_task(config)
    ranks = Ranks.join()
    if not resume:
        ranks.from_first(lambda: RunFolder.require_free(config))
    tokenizer, _ = load_tokenizer(config.model)
    accelerator = Accelerator()
    engine = config.model.attention
    if engine == "auto":
        engine = choose_engine(accelerator.device.type)
    policy = Policy(load_skeleton(config.model), tokenizer, accelerator, config, engine)
    notes: list[str] = []
    task = fit_prompts(policy, task, notes.append)
    prompts = [len(range(rank, config.optim.prompts_per_step, ranks.size)) for rank in range(ranks.size)]
    how = "alone" if ranks.size == 1 else "weights spread over them (FSDP2)" if ranks.sharded else "whole weights (DDP)"
    plan = expected_plan(policy, task)
    memory = memory_of(policy, ranks, plan.tree_tokens / max(1, plan.trees))
    adapted = hasattr(policy.model, "peft_config")
    every, keep = config.run.checkpoint_every, config.run.keep_checkpoints
    lines = [
        *notes,
        f"processes     {ranks.size}, {how}, on {accelerator.device.type}",
        f"model         {sum(p.numel() for p in policy.model.parameters()):,} parameters in {config.model.dtype}, "
        f"{sum(p.numel() for p in policy.trained):,} of them trained{' (adapters)' if adapted else ''}",
        f"a step        {config.optim.prompts_per_step} prompts x {config.sample.shape} rollouts, "
        f"{_span(prompts)} prompts a process",
        f"an update     at full lengths {plan}",
        f"of a process  about {-(-(plan.packs + plan.deep) // ranks.size)} of these packs and trees",
        f"memory        about {size_shown(memory.total)} in each process:",
        *(f"    {size_shown(size):>10}  {name}" for name, size in memory.parts.items()),
        f"disk          {size_shown(policy.checkpoint_bytes)} a checkpoint, {keep + 1} at a time, every {every} steps"
        if every
        else "disk          no checkpoints (run.checkpoint_every 0)",
    ]
    return "\n".join(lines) if ranks.first else ""


def memory_of(policy: Policy, ranks: Ranks, tree_tokens: float) -> Memory:
    """An estimate for one process, from sizes alone: expect a quarter more, and twice that where memory fragments.

    Args:
        policy: its model may be a skeleton.
        ranks: the processes.
        tree_tokens: of one group at full lengths, for the sampler's cache.
    """
    config, model = policy.config, policy.model
    shape = model.config.get_text_config()
    all_bytes = sum(p.nbytes for p in model.parameters())
    trained = sum(p.nbytes for p in policy.trained)
    spread = ranks.size if ranks.sharded else 1
    parts = {"weights": all_bytes / spread, "gradients": trained / spread, "AdamW's moments": 2 * trained / spread}
    if ranks.sharded:
        parts["whole weights, to sample from"] = float(all_bytes)
    if presets.from_config(config.credit, config.sample.max_completion_tokens).beta > 0:
        parts["KL reference"] = trained / spread
    if config.sample.dtype not in ("model", config.model.dtype):
        width = torch.empty((), dtype=getattr(torch, config.sample.dtype)).element_size()
        parts[f"the sampler's copy in {config.sample.dtype}"] = width * sum(p.numel() for p in model.parameters())
    parts["activations of a pack"] = float(_activations(config, shape, max(config.optim.pack_tokens, 1)))
    parts["logits"] = float(KEEP * 4 * 2)
    if config.sample.engine == "hf":
        groups = -(-config.optim.prompts_per_step // ranks.size)
        parts["key-value cache"] = _cache_per_token(config, shape) * tree_tokens * groups
    return Memory(parts)


def _width(config: TrainConfig) -> int:
    """Bytes of an activation."""
    return 2 if config.model.autocast or config.model.dtype == "bfloat16" else 4


def _activations(config: TrainConfig, shape: Any, tokens: int) -> float:
    """What the backward keeps: six times the hidden and four times the inner size of each layer, queries and keys; with
    activations computed again, the input of each layer and one layer whole."""
    head, keys = _head_and_keys(shape)
    inner = getattr(shape, "intermediate_size", None) or 4 * shape.hidden_size
    layer = 6 * shape.hidden_size + 4 * inner + 2 * head * (shape.num_attention_heads + keys)
    layers = shape.num_hidden_layers
    whole = layer + layers * shape.hidden_size if config.model.gradient_checkpointing else layer * layers
    return whole * tokens * _width(config)


def _head_and_keys(shape: Any) -> tuple[int, int]:
    """The size of a head, and the number of heads that have keys."""
    head = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    return head, getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads


def _cache_per_token(config: TrainConfig, shape: Any) -> float:
    head, keys = _head_and_keys(shape)
    dtype = config.model.dtype if config.sample.dtype == "model" else config.sample.dtype
    return 2.0 * shape.num_hidden_layers * keys * head * (2 if dtype == "bfloat16" else 4)


def _span(counts: list[int]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} or {max(counts)}"
