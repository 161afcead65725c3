"""What code of a user may change of this process, and a run must not notice."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["surroundings_kept"]


@contextmanager
def surroundings_kept() -> Iterator[None]:
    """Brings back the folder (a run's own may be relative) and whether torch computes gradients."""
    folder, gradients = os.getcwd(), _computes_gradients()
    try:
        yield
    finally:
        os.chdir(folder)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_grad_enabled(gradients)


def _computes_gradients() -> bool:
    torch = sys.modules.get("torch")  # what is not loaded is not loaded for this
    return torch is None or torch.is_grad_enabled()
