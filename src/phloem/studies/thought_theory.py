"""Variance of a thought's advantage: the leading order in 1/M, and simulation.

A(th_i) = (V_i - mean V) / std V over the K values, V_i the mean of M rewards; standard deviations with ddof 0.
Source: GRPO-MA (arXiv 2509.24494), section on the variance of the thought advantage; the formula by the delta method.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

__all__ = ["binary_correlation", "leading_order", "simulated"]


def leading_order(
    v_K: Float64[np.ndarray, " K"], variance_K: Float64[np.ndarray, " K"], M: int
) -> Float64[np.ndarray, " K"]:
    """Variance of each thought's advantage to first order in 1/M.

    Args:
        v_K: true values of the thoughts; not all equal.
        variance_K: variance of one reward within each thought.
        M: answers per thought.
    """
    K = len(v_K)
    spread = v_K.std()
    z_K = (v_K - v_K.mean()) / spread
    slope_KK = np.eye(K) - 1 / K - np.outer(z_K, z_K) / K
    return (slope_KK**2 @ variance_K) / (M * spread**2)


def simulated(
    v_K: Float64[np.ndarray, " K"], variance_K: Float64[np.ndarray, " K"], M: int, draws: int, seed: int
) -> Float64[np.ndarray, " K"]:
    """Variance of each thought's advantage over `draws` draws of normal rewards; 0 where values have no spread."""
    rng = np.random.default_rng(seed)
    values = v_K + np.sqrt(variance_K / M) * rng.standard_normal((draws, len(v_K)))
    return _advantages(values).var(0)


def binary_correlation(K: int, M: int, draws: int, seed: int) -> float:
    """Correlation of a thought's advantage with the one from its true value: right or wrong answers, values uniform."""
    rng = np.random.default_rng(seed)
    v = rng.random((draws, K))
    measured = _advantages(rng.binomial(M, v) / M)
    return float(np.corrcoef(measured.ravel(), _advantages(v).ravel())[0, 1])


def _advantages(values: np.ndarray) -> np.ndarray:
    centred = values - values.mean(1, keepdims=True)
    spread = centred.std(1, keepdims=True)
    return np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12)
