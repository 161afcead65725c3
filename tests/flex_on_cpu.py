"""Flex attention on CPU for tests: torch's unfused implementation, whose backward torch keeps from use there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch.nn.attention.flex_attention as of_torch

from phloem.forward import flex


@contextmanager
def flex_on_cpu() -> Iterator[None]:
    """Inside, models on CPU may be prepared for `flex`: the masks are ours, the arithmetic is torch's reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "refuse_device", lambda device: None)
        patch.setattr(of_torch, "_validate_device", lambda query, key, value: None)
        patch.setattr(of_torch, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        yield
