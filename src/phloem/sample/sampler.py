"""What a sampler is asked and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from phloem.config import ForkConfig, SampleConfig
from phloem.kinds import PhloemError
from phloem.tree import Group

__all__ = ["ForkPlan", "SampleError", "Sampler", "Stage", "check_request", "narrowed"]


class SampleError(PhloemError, ValueError):
    """A request the sampler cannot serve; the message names it and the remedy."""


@dataclass(frozen=True)
class Stage:
    """One level of segments.

    Attributes:
        fan_out: segments sampled from each fork of the stage before (from the prompt, for the first stage).
        max_tokens: budget of each segment.
        until: the text that ends a segment and forks it. None in the last stage: nothing follows. None in an earlier
            stage: the segment forks where its budget ends.
        closing: text that ends with `until`, written where the budget would end without it: the segment then forks.
            Its tokens are the last of the budget and are not sampled: they are context and nothing else. None: such
            a segment is a leaf.
    """

    fan_out: int
    max_tokens: int
    until: str | None = None
    closing: str | None = None

    def __post_init__(self) -> None:
        if self.fan_out < 1 or self.max_tokens < 1:
            raise SampleError(f"a stage needs fan_out >= 1 and max_tokens >= 1, got {self}")
        if self.until == "":
            raise SampleError("a stage's `until` is empty: name the closing tag, or None to fork at the budget")
        if self.closing is not None and not (self.until and self.closing.endswith(self.until)):
            raise SampleError(f"a stage's closing text {self.closing!r} does not end with its `until` {self.until!r}")


@dataclass(frozen=True)
class ForkPlan:
    """How a group grows, level by level.

    `ForkPlan((Stage(4, 112, "</think>"), Stage(4, 16)))` samples 4 thoughts and 4 answers from each. A segment that
    ends in another way than its stage's fork (an EOS id, the budget before the closing text) is a leaf of its level,
    so a group may have fewer rollouts than `rollouts`.
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise SampleError("a fork plan needs at least one stage")
        if (last := self.stages[-1]).until is not None:
            raise SampleError(f"the last stage ends at {last.until!r} but nothing follows it: set `until` to None")

    @classmethod
    def from_config(cls, config: SampleConfig) -> ForkPlan:
        """The stages of `sample.levels`, closed by force where `sample.unclosed_thought` asks for it."""
        closes = config.unclosed_thought == "close"

        def stage(level: ForkConfig) -> Stage:
            closing = (config.closing_text or level.until) if closes and level.until is not None else None
            return Stage(level.fan_out, level.max_tokens, level.until, closing)

        return cls(tuple(map(stage, config.levels)))

    @classmethod
    def plain(cls, rollouts: int, max_tokens: int) -> ForkPlan:
        """Rollouts of one segment each."""
        return cls((Stage(rollouts, max_tokens),))

    @property
    def rollouts(self) -> int:
        """Rollouts of a group in which every segment forks."""
        return prod(stage.fan_out for stage in self.stages)

    @property
    def max_tokens(self) -> int:
        """The longest completion, in tokens."""
        return sum(stage.max_tokens for stage in self.stages)


def narrowed(config: SampleConfig) -> str | None:
    """What to tell the user where top-p or top-k cut the distribution; None where neither does."""
    if config.whole_distribution:
        return None
    return (
        f"sample.top_p {config.top_p:g} and sample.top_k {config.top_k} draw rollouts from a narrower policy than the "
        "one that is trained; logprobs are those of the whole distribution"
    )


class Sampler(Protocol):
    """Grows one group per prompt.

    What a branch draws depends on the sampler's seed, the prompt's key and the branch's place in its group, and on
    nothing else: not on the other prompts, their order, the batch size or the process that runs it.
    """

    @property
    def version(self) -> int:
        """Counts the weights this sampler has seen: raised by every `sync`."""
        ...

    def sample(self, prompts: Sequence[np.ndarray], plan: ForkPlan, keys: Sequence[tuple[int, ...]]) -> list[Group]:
        """One group per prompt, in the prompts' order; segments in depth-first order of their branch.

        Args:
            prompts: ids, int64 of shape (P,) each.
            plan: the stages of every group.
            keys: one per prompt, for example (step, index of the example). Equal keys draw equal random numbers.

        Raises:
            SampleError: a prompt that does not fit the model's context, keys that do not match the prompts.
        """
        ...

    def sync(self) -> None:
        """Takes over the policy's current weights; called after every update."""
        ...


def check_request(
    prompts: Sequence[np.ndarray],
    plan: ForkPlan,
    keys: Sequence[tuple[int, ...]],
    vocabulary: int,
    context: int | None,
) -> None:
    """Makes sure that a call of `sample` can be served.

    Args:
        prompts, plan, keys: as given to `Sampler.sample`.
        vocabulary: ids the model knows.
        context: longest row in tokens; None: no limit.

    Raises:
        SampleError: what is wrong with which prompt, and the remedy.
    """
    if len(keys) != len(prompts):
        raise SampleError(f"{len(prompts)} prompts and {len(keys)} keys: give one key per prompt")
    for index, prompt in enumerate(prompts):
        if prompt.ndim != 1 or prompt.size == 0:
            raise SampleError(f"prompt {index} has the shape {prompt.shape}: it needs at least one token")
        if not 0 <= prompt.min() <= prompt.max() < vocabulary:
            raise SampleError(f"prompt {index} has ids outside the model's vocabulary of {vocabulary}")
        if context is not None and len(prompt) + plan.max_tokens > context:
            raise SampleError(
                f"prompt {index} has {len(prompt)} tokens and the plan adds up to {plan.max_tokens}, more than the "
                f"model's context of {context}: shorten the prompt or the budgets"
            )
