"""The trees that updates are timed on: P / T / A tokens of prompt, thought and answer, K thoughts x M answers each.

Token ids are random, so nothing merges but what a shape shares on purpose. Rewards are 0 and 1 in turn.
"""

from __future__ import annotations

import re

import numpy as np

from phloem.tree import Group, Segment

__all__ = ["SHAPES", "group_of_shape"]

UNEVEN = "depth-4 uneven"
SHAPES = (
    "50/250/50 4x4",
    "50/1000/50 4x4",
    "50/250/16 4x16",
    "1024/0/128 8x1",
    UNEVEN,
    "50/0/250 8x1",
    "16/0/512 4x1",
)
# Of the uneven tree: the children of a segment are numbered through, and lengths and fan-outs taken in turn.
LENGTHS = (180, 60, 240, 90, 20, 130)
FAN_OUT = ((3,), (3, 1, 4), (2, 3, 1, 2), (1, 2, 3))


def group_of_shape(name: str, vocabulary: int, seed: int = 0) -> Group:
    """The scored group of a shape.

    Raises:
        ValueError: neither the uneven tree's name nor "P/T/A KxM".
    """
    ids = np.random.default_rng(seed)
    if name == UNEVEN:
        prompt, segments = 80, _uneven(ids, vocabulary)
    else:
        found = re.fullmatch(r"(\d+)/(\d+)/(\d+) (\d+)x(\d+)", name)
        if found is None:
            raise ValueError(f"{name!r} is no shape; write P/T/A KxM, or one of {', '.join(SHAPES)}")
        prompt, thought, answer, k, m = map(int, found.groups())
        above = [Segment(ids.integers(0, vocabulary, thought)) for _ in range(k if thought else 0)]
        parents = [i if thought else None for i in range(k) for _ in range(m)]
        segments = [*above, *(Segment(ids.integers(0, vocabulary, answer), parent) for parent in parents)]
    group = Group(ids.integers(0, vocabulary, prompt), tuple(segments))
    return group.with_rewards([float(r % 2) for r in range(group.group_size)])


def _uneven(ids: np.random.Generator, vocabulary: int) -> list[Segment]:
    """Four levels, one to four children each, segments of 20 to 240 tokens."""
    segments: list[Segment] = []
    frontier: list[int | None] = [None]
    for fan_out in FAN_OUT:
        grown: list[int | None] = []
        for i, parent in enumerate(frontier):
            for _ in range(fan_out[i % len(fan_out)]):
                segments.append(Segment(ids.integers(0, vocabulary, LENGTHS[len(segments) % len(LENGTHS)]), parent))
                grown.append(len(segments) - 1)
        frontier = grown
    return segments
