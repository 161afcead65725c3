"""Growing trees on an engine that serves one request per segment.

An engine (vLLM in this process, or a server) gets the ids before a segment and returns the segment's ids. Where a
segment ends and forks is not left to it: the rules of `phloem.sample.grow` are applied to the ids it returns, so the
samplers share plans, closing tags and budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from phloem.sample.draw import uniforms
from phloem.sample.grow import End, Growth, StageTable
from phloem.sample.sampler import SampleError
from phloem.tree import Finish, Group

__all__ = ["Engine", "Reply", "Request", "grow"]

_SEEDS = 2**53
"""Numbers a uniform float64 can tell apart."""


@dataclass(frozen=True)
class Request:
    """One segment to sample.

    Attributes:
        group: index of the prompt.
        branch: of the segment, `(2, 0)` for the first answer of the third thought.
        ids: prompt and segments before this one.
        max_tokens: budget.
        until: text at which the engine may stop; the token that completes it is part of the reply.
        seed: of the segment's random numbers.
    """

    group: int
    branch: tuple[int, ...]
    ids: tuple[int, ...]
    max_tokens: int
    until: str | None
    seed: int


@dataclass(frozen=True)
class Reply:
    """What the engine sampled.

    Attributes:
        tokens: ids.
        logprobs: one per id, in nats, at the sampling temperature.
        stopped: whether the engine ended the segment before its budget (at an end id, or at `until`).
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stopped: bool


Continue = Callable[[Request, Reply], Iterable[Request]]


class Engine(Protocol):
    """Serves requests in any order, many at a time."""

    def run(self, requests: Iterable[Request], then: Continue) -> None:
        """Serves the requests, and those that `then` returns for each reply, until none is left.

        An error in `then` drops what is still running.
        """
        ...


def grow(
    engine: Engine, table: StageTable, prompts: Sequence[np.ndarray], seed: int, keys: Sequence[tuple[int, ...]]
) -> list[Group]:
    """One group per prompt; the answers of a thought start as soon as it is closed.

    Raises:
        SampleError: the engine returned something else than a segment of the plan.
    """
    growths = [Growth(prompt) for prompt in prompts]
    stages = table.plan.stages

    def children(group: int, branch: tuple[int, ...], ids: tuple[int, ...]) -> list[Request]:
        stage, closing = stages[len(branch)], len(table.closing[len(branch)])
        return [
            Request(group, own, ids, stage.max_tokens - closing, stage.until, _seed(seed, keys[group], own))
            for own in ((*branch, i) for i in range(stage.fan_out))
        ]

    def then(request: Request, reply: Reply) -> list[Request]:
        tokens, logprobs, finish = read_segment(table, request, reply)
        growths[request.group].add(request.branch, tokens, logprobs, finish)
        if finish is not Finish.FORK:
            return []
        return children(request.group, request.branch, (*request.ids, *tokens.tolist()))

    engine.run([r for g, p in enumerate(prompts) for r in children(g, (), tuple(p.tolist()))], then)
    return [growth.group() for growth in growths]


def read_segment(table: StageTable, request: Request, reply: Reply) -> tuple[np.ndarray, np.ndarray, Finish]:
    """The reply's ids and logprobs up to where the segment ends by the plan, and how it ends.

    An engine may notice the closing text late (it looks at decoded text, the plan at bytes); what it sampled past
    the end is dropped, which leaves the distribution of the segment as it is. Closing text that the plan forces is
    added, with NaN for its logprobs.

    Raises:
        SampleError: ids or logprobs are missing or impossible, or the engine stopped where the plan goes on.
    """
    where = f"the reply for prompt {request.group}, branch {request.branch}"
    tokens = np.asarray(reply.tokens, dtype=np.int64)
    logprobs = np.asarray(reply.logprobs, dtype=np.float32)
    if not len(tokens):
        raise SampleError(f"{where} has no token ids: the engine must return the ids it sampled (return_token_ids)")
    if logprobs.shape != tokens.shape:
        raise SampleError(f"{where} has {len(tokens)} ids and {logprobs.size} logprobs: each id needs its own")
    if not (np.isfinite(logprobs).all() and (logprobs <= 1e-4).all()):
        raise SampleError(
            f"{where} has logprobs that are none ({logprobs[~(logprobs <= 1e-4)][:3].tolist()}): the engine's logits "
            "are not finite, or it reports logits: its logprobs mode must be processed_logprobs"
        )
    vocabulary = len(table.is_eos_V)
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise SampleError(f"{where} has the id {tokens.max()} outside the policy's vocabulary of {vocabulary}")
    length, end = table.end_of(len(request.branch) - 1, tokens)
    if end is End.RUNNING:
        raise SampleError(
            f"{where} ends after {length} of {request.max_tokens} tokens with id {tokens[-1]}, which neither ends a "
            f"completion nor completes {request.until!r}: the engine "
            + ("has end ids of its own" if reply.stopped else "has a shorter context than the policy")
        )
    tokens, logprobs = tokens[:length], logprobs[:length]
    if end is End.FORCED:
        closing = table.closing[len(request.branch) - 1]
        tokens = np.concatenate([tokens, closing])
        logprobs = np.concatenate([logprobs, np.full(len(closing), np.nan, dtype=np.float32)])
        return tokens, logprobs, Finish.FORK
    return tokens, logprobs, end.finish


def _seed(seed: int, key: tuple[int, ...], branch: tuple[int, ...]) -> int:
    """A seed for a branch, from the stream of numbers that the transformers sampler would draw it with."""
    return int(uniforms(seed, key, branch, 1)[0] * _SEEDS)
