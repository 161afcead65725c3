"""One call of the tree sampler: which rows are decoded together, and what becomes of them.

Rows of all prompts and stages are decoded together; a row that ends leaves its place to the next one waiting, so
answers of early thoughts run while other thoughts are still being written. When a segment reaches its fork, the
token that ended it is computed once, and its children start from the keys, values and logits it left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from phloem.sample.draw import Draw, uniforms
from phloem.sample.grow import End, Growth, StageTable
from phloem.sample.slots import Slots
from phloem.sample.twin import Twin
from phloem.tree import Finish, Group

__all__ = ["Run", "SampleStats"]

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


class Run:
    """Grows the groups of some prompts; the rows in use are 0..n-1, in slots and in the arrays below.

    Args:
        twin: the model.
        draw: how a token is drawn.
        table: the plan and its stop conditions.
        prompts: ids, int64 of shape (P,) each.
        streams: one per prompt, the seed and key that its branches' random numbers come from.
        max_rows: rows decoded at a time.
    """

    def __init__(
        self,
        twin: Twin,
        draw: Draw,
        table: StageTable,
        prompts: Sequence[np.ndarray],
        streams: Sequence[tuple[int, tuple[int, ...]]],
        max_rows: int,
    ) -> None:
        self.twin, self.draw, self.table, self.streams = twin, draw, table, streams
        self.stats = SampleStats()
        self.device = next(twin.model.parameters()).device
        self.plan = plan = table.plan
        self.growths = [Growth(prompt) for prompt in prompts]
        self.waiting = deque(range(len(prompts)))
        self.forks: list[deque[_Fork]] = [deque() for _ in plan.stages]
        self.rows = min(max_rows, len(prompts) * plan.rollouts)
        blocks = min(len(prompts), self.rows)
        self.slots = Slots(self.rows, blocks, max(map(len, prompts)), plan.max_tokens)
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
        self.forced = np.full(self.rows, -1)
        """Tokens of the closing text written so far; -1: the row samples its tokens."""
        self.tokens = np.zeros((self.rows, longest), dtype=np.int64)
        self.logprobs = np.zeros((self.rows, longest), dtype=np.float32)
        self.numbers = np.zeros((self.rows, longest))

    def groups(self) -> list[Group]:
        """Runs to the end; one group per prompt."""
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
        self.matched[rows], self.length[rows], self.closing[rows], self.forced[rows] = 0, 0, False, -1
        for row in range(self.n, self.n + count):
            self.branch[row] = (*fork.branch, fork.started)
            seed, key = self.streams[fork.group]
            self.numbers[row, : stage.max_tokens] = uniforms(seed, key, self.branch[row], stage.max_tokens)
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
        for row in map(int, np.flatnonzero(closing)):
            block = int(self.slots.block_of_row[row])
            fork = _Fork(int(self.group_of[row]), self.branch[row], block, self.slots.take(row), logits[row].clone())
            self.forks[len(fork.branch)].append(fork)
            self.users[block] += 1
        forced = self.forced[rows] >= 0
        running = np.flatnonzero(~closing & ~forced)
        self._force(np.flatnonzero(~closing & forced))
        if len(running):
            self._record(
                running, logits if len(running) == self.n else logits[torch.from_numpy(running).to(self.device)]
            )
        self._drop(np.flatnonzero(closing | (self.length[rows] == 0)))

    def _record(self, rows: np.ndarray, logits: torch.Tensor) -> None:
        """Draws a token for each of the rows; ended segments are stored, and rows that end for good get length 0."""
        at = self.length[rows]
        tokens, logprobs = self.draw(logits, self.numbers[rows, at])
        self.tokens[rows, at], self.logprobs[rows, at] = tokens, logprobs
        self.length[rows] = at + 1
        self.stats.sampled += len(rows)
        self.matched[rows], ends = self.table.advance(self.stage[rows], self.matched[rows], at + 1, tokens)
        for row, end in zip(rows[ends != End.RUNNING], ends[ends != End.RUNNING], strict=True):
            if end == End.FORCED:
                self.forced[row] = 0
                continue
            self._keep(row, End(end).finish)
            if end == End.FORK:
                self.closing[row] = True
            else:
                self.length[row] = 0

    def _force(self, rows: np.ndarray) -> None:
        """Writes the next token of their closing text into rows; those that have all of it fork."""
        for row in map(int, rows):
            text, at = self.table.closing[self.stage[row]], int(self.length[row])
            self.tokens[row, at], self.logprobs[row, at] = text[self.forced[row]], np.nan
            self.length[row] += 1
            self.forced[row] += 1
            if self.forced[row] == len(text):
                self.forced[row] = -1
                self._keep(row, Finish.FORK)
                self.closing[row] = True

    def _keep(self, row: int, finish: Finish) -> None:
        """Stores the segment of a row."""
        n = int(self.length[row])
        growth = self.growths[int(self.group_of[row])]
        growth.add(self.branch[row], self.tokens[row, :n].copy(), self.logprobs[row, :n].copy(), finish)

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
                self.forced,
                self.tokens,
                self.logprobs,
                self.numbers,
            ):
                array[target] = array[source]
            for s, t in zip(source, target, strict=True):
                self.branch[t] = self.branch[s]
        self.n = left
