"""The named rules as data: what each method credits, against what, how scaled, how counted.

A rule is a point in a small space (`Rule`); a preset is a rule with a name and a paper. `docs/presets/` has a page
for each with its equation and hand numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, get_args

from phloem.config import CreditConfig
from phloem.config.credit import Baseline, Normaliser, Scale, Share, Unit
from phloem.kinds import ConfigError

__all__ = [
    "PRESETS",
    "Baseline",
    "Normaliser",
    "Preset",
    "Rule",
    "Scale",
    "Share",
    "Unit",
    "from_config",
    "get",
    "names",
    "resolved",
]

_CHOICES: dict[str, tuple[str, ...]] = {
    "unit": get_args(Unit),
    "baseline": get_args(Baseline),
    "scale": get_args(Scale),
    "share": get_args(Share),
    "kl_share": get_args(Share),
    "normaliser": get_args(Normaliser),
}


@dataclass(frozen=True)
class Rule:
    """How rewards at the leaves become credit on the tree.

    Attributes:
        unit: what is credited once: a rollout's whole path, or each segment's own tokens.
        baseline: what a value is compared with: the mean leaf reward of the group, of the values of the same level,
            of the siblings' values, the parent's value, the others of the same level, or 0.
        scale: what the difference is divided by: the standard deviation over the baseline's set, over the leaf
            rewards, or nothing. `leave-one-out` and `none` take the level as their set.
        ddof: delta degrees of freedom of the standard deviation (1: sample, 0: population).
        eps: added to the standard deviation.
        share: `once` divides a token's credit by the number of branches (of the same level) that hold it.
        kl_share: the same for the KL term.
        normaliser: the weight of a branch's token; see `phloem.credit.weights`.
        clip_low: the ratio is clipped below 1 - clip_low; None: not clipped.
        clip_high: the ratio is clipped above 1 + clip_high; None: not clipped.
        beta: weight of the k3 KL to the reference; 0: no reference.
        max_completion_tokens: divisor of the `constant` normaliser.

    Raises:
        ValueError: a value outside the space; the message lists the choices.
    """

    unit: Unit = "rollout"
    baseline: Baseline = "group"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-4
    share: Share = "every"
    kl_share: Share = "every"
    normaliser: Normaliser = "token-group"
    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    beta: float = 0.0
    max_completion_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof is {self.ddof}; choose 0 or 1")
        for name in ("eps", "beta", "clip_low", "clip_high"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is {value}; it must be at least 0")
        if self.clip_low is not None and self.clip_low >= 1:
            raise ValueError(f"clip_low is {self.clip_low}; the ratio's lower bound 1 - clip_low must be positive")


@dataclass(frozen=True)
class Preset:
    """A rule with its name, its source and what to know before using it."""

    name: str
    rule: Rule
    paper: str
    equation: str
    note: str


_GRPO = Rule()
_LAMBDA = replace(_GRPO, share="once", kl_share="once")
_MA = replace(_GRPO, unit="segment", baseline="level", normaliser="segment")

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="grpo",
            rule=_GRPO,
            paper="arXiv 2402.03300, with the token mean that arXiv 2509.21154 analyses",
            equation="A_i = (r_i - mean r) / std r;  w = 1 / (n_groups Z_g)",
            note="One scalar per rollout; a group weighs the same whatever its length.",
        ),
        Preset(
            name="grpo-seq",
            rule=replace(_GRPO, normaliser="sequence"),
            paper="arXiv 2402.03300",
            equation="A_i = (r_i - mean r) / std r;  w = 1 / (n_groups G |y_i|)",
            note="GRPO as published: every rollout weighs the same, so tokens of long rollouts weigh less.",
        ),
        Preset(
            name="dr-grpo",
            rule=replace(_GRPO, scale="none", normaliser="constant"),
            paper="arXiv 2503.20783",
            equation="A_i = r_i - mean r;  w = 1 / (n_groups G max_completion_tokens)",
            note="No division by the spread nor by the length.",
        ),
        Preset(
            name="dapo",
            rule=replace(_GRPO, normaliser="token", clip_high=0.28),
            paper="arXiv 2503.14476",
            equation="A_i = (r_i - mean r) / std r;  w = 1 / Z",
            note="The loss of DAPO: token mean over the whole step, the upper clip raised. Dynamic sampling "
            "(sample.refill_rounds) and overlong shaping (credit.overlong_share) are settings of a run; "
            "recipes/dapo.yaml sets them.",
        ),
        Preset(
            name="rloo",
            rule=replace(
                _GRPO, baseline="leave-one-out", scale="none", normaliser="rollout", clip_low=None, clip_high=None
            ),
            paper="arXiv 2402.14740",
            equation="A_i = r_i - mean of the other rewards;  w = 1 / (n_groups G)",
            note="REINFORCE with the leave-one-out baseline; ratios per token.",
        ),
        Preset(
            name="lambda-grpo",
            rule=_LAMBDA,
            paper="arXiv 2509.21154",
            equation="A_i = (r_i - mean r) / std r;  w = 1 / (n_groups Z_g), share 1 / |lambda|",
            note="A token shared by |lambda| rollouts counts once. The normaliser stays the unscaled token count, "
            "as published, so the update shrinks by about U / Z. The paper's theorem, that GRPO is a process reward "
            "model, holds for the token mean without clipping; the KL term is inside the scale, as published.",
        ),
        Preset(
            name="lambda-grpo-sn",
            rule=replace(_LAMBDA, normaliser="distinct-group"),
            paper="arXiv 2509.21154, self-normalised here",
            equation="A_i = (r_i - mean r) / std r;  w = 1 / (n_groups U_g), share 1 / |lambda|",
            note="lambda-GRPO divided by the sum of its weights, which is the number of distinct tokens.",
        ),
        Preset(
            name="grpo-ma",
            rule=_MA,
            paper="arXiv 2509.24494",
            equation="A(th_i) = (V_i - mean V) / std V;  A(ans_ij) = (R_ij - mean R) / std R;  "
            "w = 1 / (n_groups n_level |y_b|)",
            note="Thoughts are judged by the mean reward of their answers, answers among all answers. The paper leaves "
            "ddof, eps, the KL estimator and truncated thoughts open. Here: the sample standard deviation, 1e-4, k3, "
            "and a truncated thought is a leaf scored on its own text that counts among the thoughts.",
        ),
        Preset(
            name="lambda-grpo-ma",
            rule=replace(_MA, share="once", kl_share="once"),
            paper="arXiv 2509.24494 with the weights of arXiv 2509.21154",
            equation="as grpo-ma, share 1 / count",
            note="GRPO-MA in which a token that several answers (or thoughts) share by chance counts once.",
        ),
    )
}


def names() -> tuple[str, ...]:
    """The presets, in the order of the documentation."""
    return tuple(PRESETS)


def get(name: str, **changes: Any) -> Rule:
    """The rule of a preset, with any field replaced.

    Raises:
        ValueError: an unknown preset or field; the message names the nearest one.
    """
    _known(name, PRESETS, "preset")
    for field in changes:
        _known(field, [f.name for f in fields(Rule)], "field of a rule")
    return replace(PRESETS[name].rule, **changes)


def from_config(config: CreditConfig, max_completion_tokens: int) -> Rule:
    """The rule a run's settings ask for: the preset, and every field that is set.

    Raises:
        ConfigError: an unknown preset, a value outside the rule space, clipping without a bound.
    """
    changes = {f.name: getattr(config, f.name, None) for f in fields(Rule)}
    changes = {name: value for name, value in changes.items() if value is not None}
    if config.clip is False:
        changes |= {"clip_low": None, "clip_high": None}
    try:
        rule = get(config.preset, **{"max_completion_tokens": max_completion_tokens, **changes})
    except ValueError as error:
        raise ConfigError(f"credit: {error}") from error
    if config.clip and rule.clip_low is None and rule.clip_high is None:
        raise ConfigError(
            f"credit.clip is true and {config.preset} has no bounds: set credit.clip_low and credit.clip_high"
        )
    return rule


def resolved(config: CreditConfig, max_completion_tokens: int) -> CreditConfig:
    """The same settings of credit with every field that was left to the preset written out.

    Raises:
        ConfigError: as `from_config`.
    """
    rule = from_config(config, max_completion_tokens)
    known = {f.name: getattr(rule, f.name) for f in fields(Rule) if hasattr(config, f.name)}
    return replace(config, **known, clip=rule.clip_low is not None or rule.clip_high is not None)


def _known(name: str, options: Any, what: str) -> None:
    if name not in options:
        near = get_close_matches(name, list(options), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(options)}"
        raise ValueError(f"no {what} is called {name!r}{hint}")
