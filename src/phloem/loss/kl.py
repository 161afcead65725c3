"""The k3 estimate of the KL divergence to a reference (http://joschu.net/blog/kl-approx.html; GRPO, eq. 4)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["k3"]


def k3(logprobs: Float[Tensor, " E"], ref_logprobs: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
    """q - ln q - 1 with q = pi_ref / pi of each sampled token, in nats; >= 0, and 0 where the two agree.

    An unbiased estimate of KL(pi || pi_ref) on tokens of pi. The gradient flows into `logprobs` alone.
    """
    log_q = ref_logprobs.detach() - logprobs
    return torch.expm1(log_q) - log_q
