"""What a step reports about its loss: every figure is a sum over tokens, added up over packs and ranks, then divided.

A token counts once per rollout that sampled it (`count`), so figures compare with those of a row-by-row trainer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["LossSums", "loss_sums"]


@dataclass
class LossSums:
    """Sums over trained tokens; `+` adds packs and ranks, `metrics` divides.

    Attributes:
        tokens: sampled tokens, once per scored rollout.
        loss: the loss itself (already normalised, so it is not divided again).
        ratio: pi / pi_old.
        clipped_low: tokens with negative credit whose ratio is at or below the lower bound (no gradient).
        clipped_high: tokens with positive credit whose ratio is at or above the upper bound (no gradient).
        kl_old: -ln(pi / pi_old), whose mean estimates KL(pi_old || pi).
        kl_ref: the k3 estimate of KL(pi || pi_ref); 0 without a reference.
        entropy: of the predicting distribution, in nats.
        gap: |old_logprob - sampled_logprob|, in nats.
        tis_weight: weight of the token's credit for the mismatch of sampler and trainer.
    """

    tokens: float = 0.0
    loss: float = 0.0
    ratio: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    kl_old: float = 0.0
    kl_ref: float = 0.0
    entropy: float = 0.0
    gap: float = 0.0
    tis_weight: float = 0.0

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @classmethod
    def total(cls, parts: Iterable[LossSums]) -> LossSums:
        return sum(parts, cls())

    def metrics(self) -> dict[str, float]:
        """Means per sampled token (0 where nothing was trained), named as in docs/metrics.md."""
        per = max(self.tokens, 1.0)
        return {
            "loss": self.loss,
            "ratio": self.ratio / per,
            "clipped_low": self.clipped_low / per,
            "clipped_high": self.clipped_high / per,
            "kl_old": self.kl_old / per,
            "kl_ref": self.kl_ref / per,
            "entropy": self.entropy / per,
            "gap": self.gap / per,
            "tis_weight": self.tis_weight / per,
        }


@torch.no_grad()
def loss_sums(
    loss: Float[Tensor, " E"],
    logprobs: Float[Tensor, " E"],
    old_logprobs: Float[Tensor, " E"],
    c_pos: Float[Tensor, " E"],
    c_neg: Float[Tensor, " E"],
    count: Float[Tensor, " E"],
    clip: tuple[float | None, float | None],
    extra: dict[str, Float[Tensor, " E"]],
) -> LossSums:
    """The sums of one pack.

    Args:
        loss: of each trained token.
        logprobs, old_logprobs: in nats.
        c_pos, c_neg: credit.
        count: scored rollouts that sampled the token.
        clip: the rule's (clip_low, clip_high).
        extra: further per-token values by the name of their field (`kl_ref`, `entropy`, `gap`).
    """
    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.exp()
    low, high = clip

    def total(values: Tensor) -> float:
        return float((values.double() * count).sum())

    sums = LossSums(tokens=float(count.double().sum()), loss=float(loss.double().sum()))
    sums.ratio = total(ratio)
    sums.kl_old = total(-log_ratio)
    if low is not None:
        sums.clipped_low = total((c_neg < 0) & (ratio <= 1.0 - low))
    if high is not None:
        sums.clipped_high = total((c_pos > 0) & (ratio >= 1.0 + high))
    for name, values in extra.items():
        setattr(sums, name, total(values))
    return sums
