"""The clipped surrogate on tree tokens.

For one token with ratio rho and covering branches of advantage A_i and weight w_i,

    sum_i w_i min(rho A_i, clip(rho) A_i) = c_pos min(rho, 1 + clip_high) + c_neg max(rho, 1 - clip_low)

with c_pos = sum_i w_i max(A_i, 0) and c_neg = sum_i w_i min(A_i, 0): a positive advantage can only meet the upper
bound and a negative one the lower. Two numbers per distinct token so carry the surrogate of the whole group, exactly.
Source: PPO (arXiv 1707.06347, eq. 7), asymmetric bounds DAPO (arXiv 2503.14476), dual clip arXiv 1912.09729, eq. 5.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["surrogate"]


def surrogate(
    logprobs: Float[Tensor, " E"],
    old_logprobs: Float[Tensor, " E"],
    c_pos: Float[Tensor, " E"],
    c_neg: Float[Tensor, " E"],
    clip_low: float | None = 0.2,
    clip_high: float | None = 0.2,
    dual_clip: float | None = None,
) -> Float[Tensor, " E"]:
    """The loss of each trained token; the loss of the step is the sum over tokens, packs and ranks.

    Args:
        logprobs: of the current policy, in nats, with gradient.
        old_logprobs: of the policy at sampling, by the trainer's forward; no gradient flows into them.
        c_pos: credit of the branches with a positive advantage, >= 0, normaliser included.
        c_neg: credit of the branches with a negative advantage, <= 0, normaliser included.
        clip_low: lower bound of the ratio is 1 - clip_low; None: not clipped.
        clip_high: upper bound of the ratio is 1 + clip_high; None: not clipped.
        dual_clip: bound on the ratio where the advantage is negative, above 1; None: off.

    Returns:
        -(c_pos min(rho, 1 + clip_high) + c_neg max(rho, 1 - clip_low)), shape (E,).
    """
    ratio = torch.exp(logprobs - old_logprobs.detach())
    gained = ratio if clip_high is None else ratio.clamp(max=1.0 + clip_high)
    lost = ratio if clip_low is None else ratio.clamp(min=1.0 - clip_low)
    if dual_clip is not None:
        lost = lost.clamp(max=dual_clip)
    return -(c_pos * gained + c_neg * lost)
