"""The error every part of `phloem.models` raises."""

from __future__ import annotations

from phloem.kinds import PhloemError

__all__ = ["ModelError"]


class ModelError(PhloemError, ValueError):
    """A model or tokenizer that cannot be used; the message names it and the remedy."""
