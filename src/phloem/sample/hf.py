"""The tree sampler on a transformers model, in this process.

Each prompt is prefilled once. Rows of all prompts and stages are decoded together; a row that ends leaves its place
to the next one waiting, so answers of early thoughts run while other thoughts are still being written. When a
segment reaches its fork, the token that ended it is computed once, and its children start from the keys, values and
logits it left.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from phloem.config import SampleConfig
from phloem.models import eos_ids as declared_eos_ids
from phloem.sample.draw import Draw, uniforms
from phloem.sample.grow import End, Growth, StageTable, token_bytes
from phloem.sample.sampler import ForkPlan, SampleError
from phloem.sample.slots import Slots
from phloem.sample.twin import Twin
from phloem.tree import Group

__all__ = ["HFSampler", "SampleStats"]

_PREFILL_TOKENS = 4096
"""Padded prompt tokens in one forward."""


@dataclass
class SampleStats:
    """What one call of `sample` computed.

    Attributes:
        prefilled: prompt tokens that went through the model.
        decoded: tokens fed to the model after the prompts, each once.
        sampled: tokens drawn.
        steps: decode steps.
    """

    prefilled: int = 0
    decoded: int = 0
    sampled: int = 0
    steps: int = 0


class HFSampler:
    """Samples groups from a transformers (or peft) causal language model.

    The model itself is left alone: its train/eval mode, config and attention are those of before. With
    `config.dtype` "model" its parameters are shared, so an update of them in place is seen at once; another dtype
    keeps a copy, and sampling from a copy that is older than the policy is an error.

    Args:
        model: the policy, not wrapped for several processes.
        tokenizer: its tokenizer; only the bytes of single tokens are read from it, to find closing tags.
        config: temperature, top_p, top_k, max_rows, dtype. The shape of the groups comes with each call's plan.
        eos_ids: ids that end a completion; None: all that the model and tokenizer declare.
        seed: of the random numbers, with the keys given to `sample`.

    Raises:
        SampleError: a model whose attention or cache cannot be served, by name.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: SampleConfig,
        eos_ids: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.seed = seed
        self.eos_ids = declared_eos_ids(model, tokenizer) if eos_ids is None else tuple(eos_ids)
        self.draw = Draw(config.temperature, config.top_p, config.top_k)
        self.twin = Twin(model, None if config.dtype == "model" else getattr(torch, config.dtype))
        self.stats = SampleStats()
        self._tokenizer = tokenizer
        self._pieces: list[bytes] | None = None
        self._tables: dict[ForkPlan, StageTable] = {}
        text_config = model.config.get_text_config()
        self.vocabulary = int(text_config.vocab_size)
        self.context: int | None = getattr(text_config, "max_position_embeddings", None)
        if config.top_p < 1 or config.top_k:
            warnings.warn(
                f"top_p {config.top_p} and top_k {config.top_k} sample from a narrower distribution than the one that "
                "is trained; the logprobs reported are those of the whole distribution",
                stacklevel=2,
            )

    @property
    def version(self) -> int:
        """Number of calls of `sync`."""
        return self.twin.version

    def sync(self) -> None:
        """Takes over the policy's weights and raises `version`; call it after every update."""
        self.twin.sync()

    def sample(self, prompts: Sequence[np.ndarray], plan: ForkPlan, keys: Sequence[tuple[int, ...]]) -> list[Group]:
        """One group per prompt; see `Sampler.sample`. `stats` then says what was computed.

        In float32 the rollouts are the same whatever `max_rows`, the order of the prompts and the process, up to
        draws that fall within rounding (about 1e-6 of the probability mass) of the border between two tokens.

        Raises:
            SampleError: a prompt that does not fit the model's context, keys that do not match the prompts.
            StaleWeights: the policy was updated and `sync` was not called.
        """
        prompts = [np.asarray(p, dtype=np.int64) for p in prompts]
        self._check(prompts, plan, keys)
        self.twin.check_fresh()
        self.stats = SampleStats()
        if not prompts:
            return []
        with torch.inference_mode():
            return _Run(self, prompts, plan, keys).groups()

    def _check(self, prompts: list[np.ndarray], plan: ForkPlan, keys: Sequence[tuple[int, ...]]) -> None:
        if len(keys) != len(prompts):
            raise SampleError(f"{len(prompts)} prompts and {len(keys)} keys: give one key per prompt")
        for index, prompt in enumerate(prompts):
            if prompt.ndim != 1 or prompt.size == 0:
                raise SampleError(f"prompt {index} has the shape {prompt.shape}: it needs at least one token")
            if not 0 <= prompt.min() <= prompt.max() < self.vocabulary:
                raise SampleError(f"prompt {index} has ids outside the model's vocabulary of {self.vocabulary}")
            if self.context is not None and len(prompt) + plan.max_tokens > self.context:
                raise SampleError(
                    f"prompt {index} has {len(prompt)} tokens and the plan adds up to {plan.max_tokens}, more than the "
                    f"model's context of {self.context}: shorten the prompt or the budgets"
                )

    def table(self, plan: ForkPlan) -> StageTable:
        """The stop conditions of a plan, made once."""
        if plan not in self._tables:
            if all(stage.until is None for stage in plan.stages):
                pieces = [b""] * self.vocabulary
            else:
                self._pieces = self._pieces or token_bytes(self._tokenizer, self.vocabulary)
                pieces = self._pieces
            self._tables[plan] = StageTable.build(plan, pieces, self.eos_ids)
        return self._tables[plan]


@dataclass
class _Fork:
    """A place to continue from: a prompt, or a segment that ended at its fork.

    Attributes:
        group: index of the prompt.
        branch: of the segment; () for the prompt.
        block: of the prompt in the slots.
        own: keys and values after the prompt, None for the prompt itself.
        logits: of the next token, (V,).
        started: children that have been started.
    """

    group: int
    branch: tuple[int, ...]
    block: int
    own: list[torch.Tensor] | None
    logits: torch.Tensor
    started: int = 0


class _Run:
    """One call of `sample`: the rows in use are 0..n-1, in slots and in the arrays below."""

    def __init__(
        self, sampler: HFSampler, prompts: list[np.ndarray], plan: ForkPlan, keys: Sequence[tuple[int, ...]]
    ) -> None:
        self.sampler, self.plan, self.keys = sampler, plan, keys
        self.twin, self.stats = sampler.twin, sampler.stats
        self.device = next(sampler.twin.model.parameters()).device
        self.table = sampler.table(plan)
        self.growths = [Growth(prompt) for prompt in prompts]
        self.waiting = deque(range(len(prompts)))
        self.forks: list[deque[_Fork]] = [deque() for _ in plan.stages]
        self.rows = min(sampler.config.max_rows, len(prompts) * plan.rollouts)
        blocks = min(len(prompts), self.rows)
        self.slots = Slots(self.rows, plan.max_tokens, blocks, max(map(len, prompts)))
        self.users = np.zeros(blocks, dtype=np.int64)
        """Rows and forks that still need each block."""

        self.n = 0
        longest = max(stage.max_tokens for stage in plan.stages)
        self.branch: list[tuple[int, ...]] = [()] * self.rows
        self.group_of = np.zeros(self.rows, dtype=np.int64)
        self.stage = np.zeros(self.rows, dtype=np.int64)
        self.matched = np.zeros(self.rows, dtype=np.int64)
        self.length = np.zeros(self.rows, dtype=np.int64)
        self.closing = np.zeros(self.rows, dtype=bool)
        self.tokens = np.zeros((self.rows, longest), dtype=np.int64)
        self.logprobs = np.zeros((self.rows, longest), dtype=np.float32)
        self.numbers = np.zeros((self.rows, longest))

    def groups(self) -> list[Group]:
        while True:
            self._admit()
            if not self.n:
                return [growth.group() for growth in self.growths]
            self._step()

    # Starting rows

    def _admit(self) -> None:
        """Fills free rows: children of the deepest forks first, then new prompts."""
        while self.n < self.rows:
            if not any(self.forks):
                if not self.waiting:
                    return
                self._prefill()
            first = self.n
            logits: list[torch.Tensor] = []
            while self.n < self.rows and any(self.forks):
                queue = next(queue for queue in reversed(self.forks) if queue)
                logits += [queue[0].logits] * self._start(queue[0])
                if queue[0].started == self.plan.stages[len(queue[0].branch)].fan_out:
                    self.users[queue.popleft().block] -= 1
            new = np.arange(first, self.n)
            self._record(new, torch.stack(logits))
            self._drop(new[self.length[new] == 0])

    def _start(self, fork: _Fork) -> int:
        """Starts as many of a fork's children as there are free rows; returns how many."""
        level = len(fork.branch)
        stage = self.plan.stages[level]
        count = min(stage.fan_out - fork.started, self.rows - self.n)
        rows = slice(self.n, self.n + count)
        self.slots.put(rows, fork.block, fork.own)
        self.users[fork.block] += count
        self.group_of[rows], self.stage[rows] = fork.group, level
        self.matched[rows], self.length[rows], self.closing[rows] = 0, 0, False
        for row in range(self.n, self.n + count):
            self.branch[row] = (*fork.branch, fork.started)
            stream = uniforms(self.sampler.seed, self.keys[fork.group], self.branch[row], stage.max_tokens)
            self.numbers[row, : stage.max_tokens] = stream
            fork.started += 1
        self.n += count
        return count

    def _prefill(self) -> None:
        """Runs the next prompts through the model: enough of them to fill the free rows."""
        free_blocks = np.flatnonzero(self.users == 0)
        wanted = min(len(self.waiting), len(free_blocks), -(-(self.rows - self.n) // self.plan.stages[0].fan_out))
        chosen: list[int] = []
        while len(chosen) < wanted:
            longest = max(len(self.growths[g].prompt) for g in [*chosen, self.waiting[0]])
            if chosen and longest * (len(chosen) + 1) > _PREFILL_TOKENS:
                break
            chosen.append(self.waiting.popleft())
        blocks = [int(b) for b in free_blocks[: len(chosen)]]
        lengths = np.array([len(self.growths[g].prompt) for g in chosen])
        ids = np.zeros((len(chosen), int(lengths.max())), dtype=np.int64)
        for row, group in enumerate(chosen):
            ids[row, : lengths[row]] = self.growths[group].prompt
        self.slots.begin_prefill(blocks, [int(n) for n in lengths], self.device)
        positions = torch.arange(ids.shape[1], device=self.device)[None].expand(len(chosen), -1)
        keep, where = np.unique(lengths - 1, return_inverse=True)
        logits = self._forward(ids, positions, torch.from_numpy(keep).to(self.device))
        for row, (group, block) in enumerate(zip(chosen, blocks, strict=True)):
            self.forks[0].append(_Fork(group, (), block, None, logits[row, int(where[row])].clone()))
            self.users[block] += 1
        self.stats.prefilled += int(lengths.sum())

    # Decoding

    def _forward(self, ids: np.ndarray, positions: torch.Tensor, keep: torch.Tensor | int) -> torch.Tensor:
        return self.twin.model(
            input_ids=torch.from_numpy(ids).to(self.device),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=keep,
            slots=self.slots,
            **{self.twin.cache_argument: self.slots},
        ).logits

    def _step(self) -> None:
        """Feeds every row its last token; rows at a fork become forks, the others draw their next token."""
        rows = np.arange(self.n)
        last = self.tokens[rows, self.length[rows] - 1]
        positions = self.slots.begin_step(self.n, self.device)
        logits = self._forward(last[:, None], positions, 1)[:, -1]
        self.stats.steps += 1
        self.stats.decoded += self.n

        closing = self.closing[rows]
        for row in np.flatnonzero(closing):
            block = int(self.slots.block_of_row[row])
            fork = _Fork(int(self.group_of[row]), self.branch[row], block, self.slots.take(row), logits[row].clone())
            self.forks[len(fork.branch)].append(fork)
            self.users[block] += 1
        running = np.flatnonzero(~closing)
        if len(running):
            self._record(running, logits if not closing.any() else logits[torch.from_numpy(running).to(self.device)])
        self._drop(np.flatnonzero(closing | (self.length[rows] == 0)))

    def _record(self, rows: np.ndarray, logits: torch.Tensor) -> None:
        """Draws a token for each of the rows; ended segments are stored, and rows that end for good get length 0."""
        at = self.length[rows]
        tokens, logprobs = self.sampler.draw(logits, self.numbers[rows, at])
        self.tokens[rows, at], self.logprobs[rows, at] = tokens, logprobs
        self.length[rows] = at + 1
        self.stats.sampled += len(rows)
        self.matched[rows], ends = self.table.advance(self.stage[rows], self.matched[rows], at + 1, tokens)
        for row, end in zip(rows[ends != End.RUNNING], ends[ends != End.RUNNING], strict=True):
            n = int(self.length[row])
            growth = self.growths[int(self.group_of[row])]
            growth.add(self.branch[row], self.tokens[row, :n].copy(), self.logprobs[row, :n].copy(), End(end).finish)
            if end == End.FORK:
                self.closing[row] = True
            else:
                self.length[row] = 0

    def _drop(self, ended: np.ndarray) -> None:
        """Takes rows out and moves the last ones into their places."""
        if not len(ended):
            return
        np.subtract.at(self.users, self.slots.block_of_row[ended], 1)
        left = self.n - len(ended)
        target = ended[ended < left]
        source = np.setdiff1d(np.arange(left, self.n), ended, assume_unique=True)
        if len(source):
            self.slots.move(source, target)
            for array in (
                self.group_of,
                self.stage,
                self.matched,
                self.length,
                self.closing,
                self.tokens,
                self.logprobs,
                self.numbers,
            ):
                array[target] = array[source]
            for s, t in zip(source, target, strict=True):
                self.branch[t] = self.branch[s]
        self.n = left
