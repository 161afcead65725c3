"""Means of figures that may be missing: NaN in an array, None in a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["known_mean"]


def known_mean(values: Sequence[Any] | np.ndarray) -> float:
    """Mean of the numbers that are neither None nor NaN; NaN if there is none."""
    array = np.asarray(values, dtype=np.float64)
    known = array[~np.isnan(array)]
    return float(known.mean()) if len(known) else float("nan")
