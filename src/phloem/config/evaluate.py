"""The settings of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from phloem.config.sample import SampleConfig, VLLMConfig
from phloem.kinds import at_least, check_fields, home_expanded, require

__all__ = ["DrawConfig", "EvaluateConfig", "PromptConfig", "SubjectConfig"]


@dataclass(frozen=True)
class SubjectConfig:
    """Which model is evaluated."""

    path: str = "smollm2-135m-instruct"
    """As `model.path` of a run: a folder (an adapter's too), a hub id, a GGUF file, or `smollm2-135m-instruct`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights. In bfloat16 a sample also depends, through rounding, on what is decoded beside it."""

    def __post_init__(self) -> None:
        check_fields(self, "model")


@dataclass(frozen=True)
class DrawConfig:
    """How completions are drawn."""

    n: int = 1
    """Samples of each problem."""
    max_tokens: int = 2048
    """The cap: a completion that reaches it is cut, judged as it stands, and counted as clipped."""
    temperature: float = 0.0
    """0: the most probable token every time."""
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    max_rows: int = 64
    """Rows decoded at a time by `engine: hf`. Twice as many are sampled between two writes to disk."""
    engine: Literal["hf", "vllm", "vllm-server"] = "hf"
    """transformers, vLLM in this process, or a server (`docs/sampling-vllm.md`)."""
    vllm: VLLMConfig = field(default_factory=VLLMConfig)

    def __post_init__(self) -> None:
        check_fields(self, "sample")
        at_least(self, "sample", n=1, max_tokens=1, temperature=0, top_k=0, max_rows=1)
        require(0 < self.top_p <= 1, f"sample.top_p is {self.top_p}; it must be in (0, 1]")
        if self.temperature == 0:
            require(
                self.n == 1,
                f"sample.n is {self.n} and sample.temperature 0: all samples would be the same; set n to 1, or a "
                "temperature",
            )
            require(
                self.top_p == 1 and self.top_k == 0,
                "sample.top_p or sample.top_k is set and sample.temperature is 0, where they do nothing: drop them, or "
                "set a temperature",
            )
        self.as_sample_config()  # what an engine cannot do is an error now

    def as_sample_config(self) -> SampleConfig:
        """The sampler's settings; temperature 0 is the one most probable token at any temperature."""
        greedy = self.temperature == 0
        return SampleConfig(
            temperature=1.0 if greedy else self.temperature,
            top_p=self.top_p,
            top_k=1 if greedy else self.top_k,
            max_rows=self.max_rows,
            engine=self.engine,
            vllm=self.vllm,
        )


@dataclass(frozen=True)
class PromptConfig:
    """How a problem is put to the model."""

    template: str | None = None
    """Wording around each problem in place of the benchmarks' own; `{problem}` stands for the problem."""
    system_prompt: str | None = None
    chat_template: bool = True
    """Wrap prompts in the tokenizer's chat template; off for base models."""
    chat_args: dict[str, Any] = field(default_factory=dict)
    """Variables of the chat template, for example `{enable_thinking: false}`."""

    def __post_init__(self) -> None:
        check_fields(self, "prompt")
        require(
            self.template is None or "{problem}" in self.template,
            f"prompt.template is {self.template!r}; it has no {{problem}} to put the problem in",
        )
        require(
            self.chat_template or not self.chat_args,
            "prompt.chat_args are set and prompt.chat_template is false: drop one of the two",
        )


@dataclass(frozen=True)
class EvaluateConfig:
    """Everything `phloem evaluate` needs."""

    benchmarks: tuple[str, ...] = ("math500",)
    """Names from `phloem evaluate --help`, for example `aime24,amc23`."""
    data: str | None = None
    """A folder with the benchmarks' files (`aime24.jsonl`, ...); null: from the hub."""
    limit: int | None = None
    """Only the first so many problems of each benchmark; the report says so."""
    folder: str | None = None
    """Where predictions and reports go; null: `evaluations/MODEL-FINGERPRINT`. An evaluation that was stopped goes on
    from there when the same command is given again."""
    seed: int = 0
    threads: int | None = None
    """CPU threads of torch; null: torch's choice."""
    model: SubjectConfig = field(default_factory=SubjectConfig)
    sample: DrawConfig = field(default_factory=DrawConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)

    def __post_init__(self) -> None:
        check_fields(self, "")
        home_expanded(self, "data", "folder")
        at_least(self, "", limit=1, seed=0, threads=1)
        require(self.seed < 2**32, f"seed is {self.seed}; it must be below 2**32")
        require(len(self.benchmarks) > 0, "benchmarks is empty: name at least one")
        twice = [name for name in self.benchmarks if self.benchmarks.count(name) > 1]
        require(not twice, f"benchmarks names {twice[0] if twice else ''} twice")
