"""How rewards become credit; `phloem.presets` says what the fields mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phloem.kinds import at_least, check_fields, positive, require

__all__ = ["Baseline", "CreditConfig", "Normaliser", "Scale", "Share", "Unit"]

Unit = Literal["rollout", "segment"]
Baseline = Literal["group", "level", "siblings", "parent", "leave-one-out", "none"]
Scale = Literal["std", "std-rewards", "none"]
Share = Literal["every", "once"]
Normaliser = Literal["token", "token-group", "distinct", "distinct-group", "sequence", "segment", "constant", "rollout"]


@dataclass(frozen=True)
class CreditConfig:
    """A preset by name; any field that is set replaces the preset's."""

    preset: str = "grpo-ma"
    unit: Unit | None = None
    baseline: Baseline | None = None
    scale: Scale | None = None
    ddof: Literal[0, 1] | None = None
    eps: float | None = None
    share: Share | None = None
    kl_share: Share | None = None
    normaliser: Normaliser | None = None
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
        at_least(self, "credit", eps=0, beta=0)
        positive(self, "credit", "tis_cap")
        require(
            self.dual_clip is None or self.dual_clip > 1,
            f"credit.dual_clip is {self.dual_clip}; it must be above 1 or off",
        )
        require(0 <= self.overlong_share <= 1, f"credit.overlong_share is {self.overlong_share}; it must be in [0, 1]")
        require(
            not (self.clip is False and (self.clip_low is not None or self.clip_high is not None)),
            "credit.clip is false and a clip bound is set: drop one of the two",
        )
