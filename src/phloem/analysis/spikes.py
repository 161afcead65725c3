"""How much a gradient norm stands out from its run.

Sources: SPAM (arXiv 2501.06842) scores a gradient by its size over the run's mean and calls it a spike above a
threshold; reports of pre-training flag values many standard deviations from a rolling window.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

__all__ = ["rolling_deviations", "spike_scores"]


def spike_scores(norms_t: Float64[np.ndarray, " t"]) -> Float64[np.ndarray, " t"]:
    """Each step's gradient norm over the mean norm of the run; NaN stays NaN and is in no mean.

    Steps without an update (norm 0) count in the mean, as in the run.
    """
    known = norms_t[~np.isnan(norms_t)]
    mean = float(known.mean()) if len(known) else float("nan")
    return norms_t / mean if mean > 0 else np.full(len(norms_t), np.nan)


def rolling_deviations(norms_t: Float64[np.ndarray, " t"], window: int) -> Float64[np.ndarray, " t"]:
    """(norm - mean) / standard deviation (ddof 1) of the `window` steps before; NaN for the first `window` steps.

    A window without spread has no deviations: NaN.

    Raises:
        ValueError: a window of fewer than 2 steps.
    """
    if window < 2:
        raise ValueError(f"window is {window}; a standard deviation needs at least 2 steps")
    found = np.full(len(norms_t), np.nan)
    for t in range(window, len(norms_t)):
        before = norms_t[t - window : t]
        spread = before.std(ddof=1)
        if spread > 0:
            found[t] = (norms_t[t] - before.mean()) / spread
    return found
