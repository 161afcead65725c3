"""What is watched and kept while a policy learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phloem.kinds import at_least, check_fields, home_expanded, positive, require

__all__ = ["AlarmsConfig", "EvaluationConfig", "RunConfig"]


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
        at_least(self, "evaluation", every=0, prompts=0, samples=1, shown=0, prompts_between=1)


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
        home_expanded(self, "folder")
        at_least(self, "run", seed=0, threads=1, checkpoint_every=0, keep_checkpoints=1)
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
        at_least(self, "alarms", clipped=1, window=1)
        positive(self, "alarms", "kl", "spikes", "gap")
        for name in ("zero_spread", "faults", "unscored", "entropy"):
            share = getattr(self, name)
            require(share is None or 0 <= share <= 1, f"alarms.{name} is {share}; it must be in [0, 1], or null: off")
        for name in self.stop:
            require(getattr(self, name) is not None, f"alarms.stop names {name}, and alarms.{name} is off: set it")
