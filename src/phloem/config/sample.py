"""The shape of a group and how its tokens are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Literal

from phloem.kinds import at_least, check_fields, positive, require

__all__ = ["ForkConfig", "SampleConfig", "VLLMConfig"]

LARGEST_GROUP = 2**26
"""Distinct tokens of a group that a machine could still hold; more is a slip of the pen."""


@dataclass(frozen=True)
class VLLMConfig:
    """Read by `sample.engine` vllm or vllm-server alone, as each says."""

    cache_gib: float = 2.0
    """vllm: memory for keys and values, in GiB."""
    max_model_len: int | None = None
    """vllm: longest row in tokens; null: the model's context, or what fits in `cache_gib`."""
    url: str = "http://127.0.0.1:8000"
    """vllm-server: where `vllm serve` listens."""
    weights_folder: str | None = None
    """vllm-server: a folder that the server sees too, for weights on their way; null: the temporary folder."""
    timeout: float = 600.0
    """vllm-server: seconds to wait for one answer."""

    def __post_init__(self) -> None:
        check_fields(self, "sample.vllm")
        at_least(self, "sample.vllm", max_model_len=2)
        positive(self, "sample.vllm", "cache_gib", "timeout")


@dataclass(frozen=True)
class ForkConfig:
    """One level of a group: `fan_out` segments continue each fork of the level before (the prompt, for the first)."""

    fan_out: int
    max_tokens: int
    """Budget of each segment."""
    until: str | None = None
    """The text that ends a segment and forks it; null: it forks where its budget ends. Nothing forks the last level."""

    def __post_init__(self) -> None:
        check_fields(self, "sample.forks")
        at_least(self, "sample.forks", fan_out=1, max_tokens=1)
        require(self.until != "", "sample.forks.until is empty: name the closing tag, or null to fork at the budget")


@dataclass(frozen=True)
class SampleConfig:
    """The shape of a group and how its tokens are drawn.

    `answers: 1` samples plain rollouts of one segment, with `thought_tokens + answer_tokens` as their budget.
    """

    thoughts: int = 4
    """K, segments that start at the prompt."""
    answers: int = 4
    """M, answers sampled from each thought."""
    fork_at: str = "</think>"
    """The text that closes a thought. The token that completes it belongs to the thought."""
    thought_tokens: int = 64
    answer_tokens: int = 32
    forks: tuple[ForkConfig, ...] = ()
    """The levels of a group, in place of the five settings above: for example `[{fan_out: 4, max_tokens: 32, until:
    </plan>}, {fan_out: 2, max_tokens: 64, until: </think>}, {fan_out: 2, max_tokens: 16}]`."""
    unclosed_thought: Literal["leaf", "close", "drop"] = "leaf"
    """A thought that ends without its closing text is a rollout of its own (`leaf`), is closed at the end of its
    budget by text that is never trained (`close`), or is not scored (`drop`)."""
    closing_text: str | None = None
    """What `close` writes, as a part of the thought's budget; null: the closing tag."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: off. With top_p < 1 or top_k > 0 a warning is printed: the rollouts come from a narrower policy than the one
    that is trained."""
    refill_rounds: int = 0
    """DAPO's dynamic sampling: up to so many times a step, groups without a spread of rewards are replaced by groups of
    the next prompts; 0: never."""
    max_rows: int = 128
    """Rows decoded at a time."""
    dtype: Literal["model", "float32", "bfloat16"] = "model"
    """Of the sampler's copy of the weights; `model`: the trainer's, which `engine: hf` then shares."""
    engine: Literal["hf", "vllm", "vllm-server"] = "hf"
    """transformers on the trainer's weights, vLLM in this process, or a server (`docs/sampling-vllm.md`)."""
    vllm: VLLMConfig = field(default_factory=VLLMConfig)

    def __post_init__(self) -> None:
        check_fields(self, "sample")
        at_least(self, "sample", thoughts=1, answers=1, thought_tokens=1, answer_tokens=1)
        at_least(self, "sample", top_k=0, refill_rounds=0, max_rows=1)
        positive(self, "sample", "temperature")
        require(0 < self.top_p <= 1, f"sample.top_p is {self.top_p}; it must be in (0, 1]")
        require(self.fork_at != "" or self.answers == 1, "sample.fork_at is empty; answers > 1 need a closing tag")
        self._check_forks()
        self._check_size()
        self._check_unclosed()
        if self.engine != "hf":
            self._check_vllm()

    def _check_vllm(self) -> None:
        require(
            self.temperature >= 0.01,
            f"sample.temperature is {self.temperature}; sample.engine {self.engine} samples at 0.01 or above",
        )
        require(
            self.engine == "vllm" or self.dtype == "model",
            f"sample.dtype is {self.dtype} and sample.engine {self.engine}: the server chooses (vllm serve --dtype)",
        )

    def _check_size(self) -> None:
        tokens, width = 0, 1
        for level in self.levels:
            width *= level.fan_out
            tokens += width * level.max_tokens
        require(
            tokens <= LARGEST_GROUP,
            f"sample describes groups of {width:,} rollouts with up to {tokens:,} tokens, more than {LARGEST_GROUP:,}: "
            "lower the numbers of thoughts and answers, or their budgets",
        )

    def _check_forks(self) -> None:
        if not self.forks:
            return
        for name in ("thoughts", "answers", "fork_at", "thought_tokens", "answer_tokens"):
            require(
                getattr(self, name) == getattr(type(self), name),
                f"sample.forks and sample.{name} are both set, and forks replaces it: drop one of the two",
            )
        last = self.forks[-1].until
        require(last is None, f"the last of sample.forks ends at {last!r} but nothing follows it: drop its `until`")

    def _check_unclosed(self) -> None:
        tags = [level.until for level in self.levels if level.until is not None]
        require(
            self.unclosed_thought == "leaf" or bool(tags),
            f"sample.unclosed_thought is {self.unclosed_thought}, and no segment ends at a closing text: "
            "use answers > 1, or a level of sample.forks with `until`",
        )
        if self.closing_text is None:
            return
        require(self.unclosed_thought == "close", "sample.closing_text is set: set sample.unclosed_thought to close")
        for tag in tags:
            require(
                self.closing_text.endswith(tag),
                f"sample.closing_text is {self.closing_text!r}; it must end with the closing tag {tag!r}",
            )

    @property
    def whole_distribution(self) -> bool:
        """Whether tokens are drawn from the whole distribution, neither top-p nor top-k cutting it."""
        return self.top_p == 1 and self.top_k == 0

    @property
    def levels(self) -> tuple[ForkConfig, ...]:
        """The levels of a group, from `forks` or from the settings of thoughts and answers."""
        if self.forks:
            return self.forks
        if self.answers == 1:
            return (ForkConfig(self.thoughts, self.thought_tokens + self.answer_tokens),)
        thoughts = ForkConfig(self.thoughts, self.thought_tokens, self.fork_at)
        return (thoughts, ForkConfig(self.answers, self.answer_tokens))

    @property
    def shape(self) -> str:
        """Fan-outs from the prompt on, `4 x 4`."""
        fans = [level.fan_out for level in self.forks] or [self.thoughts, self.answers]
        return " x ".join(map(str, fans))

    @property
    def group_size(self) -> int:
        """Rollouts of a group in which every segment forks."""
        return prod(level.fan_out for level in self.levels)

    @property
    def max_completion_tokens(self) -> int:
        return sum(level.max_tokens for level in self.levels)
