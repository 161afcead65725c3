"""Alarms: what would let a run look healthy while it learns nothing, learns from broken judgements, or falls apart.

An alarm reads the figures of each training step (docs/metrics.md) and speaks in one sentence: what is wrong, and what
to do. Its threshold is the setting of its name in `alarms`; `alarms.stop` names those that end the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, isnan, nan
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from phloem.config import TrainConfig

__all__ = ["ALARMS", "Alarm", "Alarms", "Raised"]

REMINDER = 10
"""An alarm that lasts speaks at its first step, then after every so many."""

Figures = Mapping[str, Any]


class Alarm(Protocol):
    """Watches one thing, step after step."""

    def __call__(self, metrics: Figures) -> str | None:
        """What is wrong at this step and what to do, or None."""
        ...


class Raised(NamedTuple):
    """The alarm's name, what it says, and whether the run is to stop."""

    name: str
    message: str
    stop: bool


class Alarms:
    """All alarms of a run, asked once per training step."""

    def __init__(self, config: TrainConfig) -> None:
        on = [name for name in ALARMS if getattr(config.alarms, name) is not None]
        self._alarms = {name: ALARMS[name](config) for name in on}
        self._stops = config.alarms.stop

    def __call__(self, metrics: Figures) -> list[Raised]:
        said = [(name, alarm(metrics)) for name, alarm in self._alarms.items()]
        raised = [Raised(name, message, name in self._stops) for name, message in said if message is not None]
        broken = not_finite(metrics)
        return raised if broken is None else [Raised("not_finite", broken, True), *raised]

    def replay(self, records: Iterable[Figures]) -> None:
        """Shows the alarms the training steps of a run that goes on, as read from metrics.jsonl."""
        for record in records:
            self({key: nan if value is None else value for key, value in record.items()})


def not_finite(metrics: Figures) -> str | None:
    """A figure of the update that is no number: always the end of a run, and no setting."""
    names = ("loss", "ratio", "kl_old", "kl_ref", "entropy", "gap", "grad_norm")
    bad = [name for name in names if metrics.get("packs") and not isfinite(metrics.get(name, 0.0))]
    if not bad:
        return None
    return (
        f"{', '.join(bad)} of step {metrics['step']} is not finite: lower optim.lr, or compute in float32 "
        "(model.autocast false, model.dtype float32)"
    )


@dataclass
class _Row:
    """Counts steps in a row that are above a threshold."""

    threshold: float
    steps: int = 0

    def __call__(self, value: float) -> bool:
        """Whether to speak: at the first step of a row and after every `REMINDER`."""
        self.steps = self.steps + 1 if value > self.threshold else 0
        return self.steps == 1 or (self.steps > 0 and self.steps % REMINDER == 0)

    @property
    def length(self) -> str:
        return "" if self.steps == 1 else f" for {self.steps} steps in a row"


@dataclass
class _Window:
    """The mean over the last so many steps that have a value."""

    size: int
    values: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.values = deque(maxlen=self.size)

    def __call__(self, value: float) -> float:
        """NaN until the window is full."""
        if not isnan(value):
            self.values.append(value)
        return fmean(self.values) if len(self.values) == self.size else nan


# ------------------------------------------------------------------------------------- nothing is learnt


class Clipped:
    """The token budget is too short for anything to be learnt.

    Every rollout at its budget and no group with a spread, step after step, trains nothing and looks healthy.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._patience = config.alarms.clipped or 0
        self._budget = config.sample.max_completion_tokens
        self._in_a_row = 0

    def __call__(self, metrics: Figures) -> str | None:
        clipped = metrics["truncated"] == 1.0 and (metrics["zero_spread"] == 1.0 or isnan(metrics["zero_spread"]))
        self._in_a_row = self._in_a_row + 1 if clipped else 0
        if not self._in_a_row or self._in_a_row % self._patience:
            return None
        return (
            f"for {self._in_a_row} steps every rollout hit its budget of {self._budget} tokens and no group had a "
            "spread of rewards, so nothing was learnt: raise sample.thought_tokens and sample.answer_tokens"
        )


class ZeroSpread:
    """Nearly all groups have equal rewards: most of the sampling trains nothing."""

    def __init__(self, config: TrainConfig) -> None:
        self._row = _Row(config.alarms.zero_spread or 0.0)
        self._window = _Window(config.alarms.window)
        self._reward = _Window(config.alarms.window)

    def __call__(self, metrics: Figures) -> str | None:
        share, reward = self._window(metrics["sampled/zero_spread"]), self._reward(metrics["sampled/reward"])
        if not self._row(share):
            return None
        return (
            f"over the last {self._window.size} steps {share:.0%} of the groups had no spread of rewards (mean reward "
            f"{reward:.2f}), more than alarms.zero_spread {self._row.threshold:g}: choose prompts that are neither too "
            "easy nor too hard for the model, sample more rollouts of each, or set sample.refill_rounds"
        )


# -------------------------------------------------------------------------------------- broken judgements


class Faults:
    """Too many judgements break off, whether they then score 0 or are left out.

    Elsewhere such rollouts become zeros that nobody sees, and the policy is trained away from what broke the grader.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._row = _Row(config.alarms.faults or 0.0)
        self._where = _where_reasons_are(config)

    def __call__(self, metrics: Figures) -> str | None:
        share = metrics["verdict/fault_share"] + metrics["verdict/timeout_share"]
        if not self._row(share):
            return None
        return (
            f"{share:.0%} of the step's judgements broke off ({metrics['verdict/fault']:.0f} faults, "
            f"{metrics['verdict/timeout']:.0f} time-outs), more than alarms.faults {self._row.threshold:g}"
            f"{self._row.length}: mend the reward, or give it more time; {self._where}"
        )


class Unscored:
    """Too many rollouts carry no reward: they were sampled and train nothing."""

    def __init__(self, config: TrainConfig) -> None:
        self._row = _Row(config.alarms.unscored or 0.0)
        self._where = _where_reasons_are(config)

    def __call__(self, metrics: Figures) -> str | None:
        share = metrics["verdict/unscored_share"]
        if not self._row(share):
            return None
        bad_golds = metrics["verdict/bad-gold"]
        if bad_golds:
            remedy = f"{bad_golds:.0f} of them have an unusable gold answer; `phloem doctor` lists such rows"
        else:
            remedy = f"find out why the reward gives them none; {self._where}"
        return (
            f"{share:.0%} of the step's rollouts were not scored and train nothing, more than alarms.unscored "
            f"{self._row.threshold:g}{self._row.length}: {remedy}"
        )


def _where_reasons_are(config: TrainConfig) -> str:
    if config.run.save_rollouts:
        return "rollouts.jsonl gives the reason of each as `detail`"
    return "run.save_rollouts true keeps the reason of each"


# ------------------------------------------------------------------------------------------ falling apart


class Divergence:
    """The policy is far from the reference, or moved far within a step."""

    def __init__(self, config: TrainConfig) -> None:
        self._row = _Row(config.alarms.kl or 0.0)

    def __call__(self, metrics: Figures) -> str | None:
        name = max(("kl_ref", "kl_old"), key=lambda key: _known(metrics[key]))
        value = _known(metrics[name])
        if not self._row(value):
            return None
        remedy = {
            "kl_ref": "the policy has left its reference: raise credit.beta, or lower optim.lr",
            "kl_old": "the policy moved far within one step: lower optim.lr or optim.updates_per_step",
        }[name]
        return (
            f"{name} is {value:.2f} nats per token, above alarms.kl {self._row.threshold:g}{self._row.length}: {remedy}"
        )


class Entropy:
    """The policy has stopped exploring: its entropy is a small share of what it was at the start."""

    def __init__(self, config: TrainConfig) -> None:
        self._row = _Row(-(config.alarms.entropy or 0.0))
        self._window = _Window(config.alarms.window)
        self._start = nan

    def __call__(self, metrics: Figures) -> str | None:
        mean = self._window(metrics["entropy"])
        if isnan(self._start):
            self._start = mean  # known once the first window is full
        share = mean / self._start if self._start > 0 else nan
        if not self._row(-share):
            return None
        return (
            f"the entropy of the last {self._window.size} steps is {mean:.3f} nats, {share:.0%} of that of the first "
            f"ones, below alarms.entropy {-self._row.threshold:g}: rollouts of a prompt become one and the same; lower "
            "optim.lr, raise credit.clip_high, sample.temperature or credit.entropy, or stop here and use an earlier "
            "policy"
        )


class Spikes:
    """A gradient far above those before it: the score abs(g_t) / mean abs(g) of SPAM (arXiv 2501.06842), which
    GRPO-MA (arXiv 2509.24494) counts above 10, with the mean over the steps so far. Steps without an update are left
    out."""

    def __init__(self, config: TrainConfig) -> None:
        self._threshold, self._least = config.alarms.spikes or 0.0, config.alarms.window
        self._total, self._steps = 0.0, 0

    def __call__(self, metrics: Figures) -> str | None:
        norm = _known(metrics["grad_norm"])
        score = norm * self._steps / self._total if self._steps >= self._least and self._total else 0.0
        if norm > 0:
            self._total, self._steps = self._total + norm, self._steps + 1
        if score <= self._threshold:
            return None
        return (
            f"the gradient's norm {norm:.3g} is {score:.1f} times the mean of the {self._steps - 1} steps before, "
            f"above alarms.spikes {self._threshold:g}: look at this step's rollouts; optim.max_grad_norm bounds what "
            "such a step does, more answers per thought (sample.answers) make it rarer"
        )


class Gap:
    """The sampler is no longer the policy that is trained.

    Weights that were not taken over, or an engine that computes something else, leave every other figure healthy.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._row = _Row(config.alarms.gap or 0.0)

    def __call__(self, metrics: Figures) -> str | None:
        gap = metrics["gap"]
        if not self._row(gap):
            return None
        return (
            f"the sampler's logprobs are {gap:.3f} nats per token from the trainer's, above alarms.gap "
            f"{self._row.threshold:g}{self._row.length}: the rollouts come from another policy than the one trained; "
            "see that the sampler takes over the weights after every update, or set sample.dtype to float32"
        )


def _known(value: float) -> float:
    return 0.0 if isnan(value) else value


ALARMS: dict[str, Callable[[TrainConfig], Alarm]] = {
    "clipped": Clipped,
    "zero_spread": ZeroSpread,
    "faults": Faults,
    "unscored": Unscored,
    "kl": Divergence,
    "entropy": Entropy,
    "spikes": Spikes,
    "gap": Gap,
}
"""Every alarm by the name of its setting."""
