"""Keeping freed memory on CPUs: a pass asks for the same tensors again and again.

glibc hands large blocks back to the system when they are freed, and every page of the next one costs a fault: up to a
million of them, some seconds, in a pass over 2,000 tokens of a 135M-parameter model.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# Of glibc's malloc.h; values are ints.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Lets this process hold on to the memory that it frees; the peak stays what it is. For its whole life.

    Returns:
        Whether the C library took it: glibc does, others have no such setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, MOST)) and bool(mallopt(TRIM_THRESHOLD, MOST))
