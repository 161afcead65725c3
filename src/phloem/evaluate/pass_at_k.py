"""pass@k: the chance that at least one of k samples solves a problem, from n >= k samples of it.

Chen et al. 2021 (arXiv 2107.03374), equation 1: with c of n samples right, the share of the k-subsets of the n samples
that hold a right one, 1 - C(n - c, k) / C(n, k). Its mean over draws of the n samples is 1 - (1 - p)^k exactly; putting
c / n for p in that expression is biased downwards.
"""

from __future__ import annotations

from math import comb

__all__ = ["pass_at_k"]


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The unbiased estimate for one problem, in [0, 1].

    Raises ValueError: k outside 1..samples, or more right than sampled.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} samples and k >= 1; there are {samples}")
    if not 0 <= right <= samples:
        raise ValueError(f"{right} of {samples} samples cannot be right")
    return 1 - comb(samples - right, k) / comb(samples, k)
