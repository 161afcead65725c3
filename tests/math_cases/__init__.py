"""Gold answers, completions and the verdict that must come out, by kind."""

from __future__ import annotations

from math_cases import structures, values, wording
from math_cases.boxed import B, Cases

__all__ = ["KINDS", "B"]

KINDS: Cases = values.CASES | structures.CASES | wording.CASES
