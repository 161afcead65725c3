"""What comparisons of the tree forward with rows run under."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flex_on_cpu import flex_on_cpu

from phloem.forward import blocks


@pytest.fixture(scope="module")
def small_cuts_and_flex() -> Iterator[None]:
    """Models on CPU may be prepared for `flex`, and `paths` cuts even the small trees of tests into blocks."""
    with pytest.MonkeyPatch.context() as patch, flex_on_cpu():
        patch.setattr(blocks, "CALL_COST", 3)
        patch.setattr(blocks, "RUN", 3)
        yield
