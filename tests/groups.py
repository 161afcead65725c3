"""Random groups for tests: uneven fan-out, duplicates, prefixes of one another, empty and forced segments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from phloem.tree import Finish, Group, Segment


@dataclass(frozen=True)
class Shape:
    """What a random group may contain."""

    levels: int = 3
    vocabulary: int = 3  # small, so that rollouts overlap by accident
    longest: int = 4
    unscored: bool = False
    forced: bool = False
    prompt: int = 2


def random_group(rng: np.random.Generator, shape: Shape = Shape(), binary: bool = False) -> Group:
    """A group whose segments fork at random; children often copy the tokens of a sibling."""
    segments: list[Segment] = []
    frontier: list[int | None] = [None]
    for level in range(shape.levels):
        grown: list[int | None] = []
        for parent in frontier:
            stops = level > 0 and rng.random() < 0.25
            for _ in range(0 if stops else int(rng.integers(1, 4))):
                segments.append(_segment(rng, shape, parent, segments))
                grown.append(len(segments) - 1)
        frontier = grown
    group = Group(rng.integers(0, shape.vocabulary, shape.prompt), tuple(segments))
    draws = rng.integers(0, 2, group.group_size) if binary else rng.choice([0.0, 0.1, 0.5, 0.7, 1.0], group.group_size)
    rewards: list[float | None] = [float(r) for r in draws]
    if shape.unscored:
        rewards = [None if rng.random() < 0.25 else r for r in rewards]
    return group.with_rewards(rewards)


def _segment(rng: np.random.Generator, shape: Shape, parent: int | None, before: list[Segment]) -> Segment:
    siblings = [s for s in before if s.parent == parent]
    if siblings and rng.random() < 0.3:
        model = siblings[int(rng.integers(len(siblings)))]
        keep = int(rng.integers(0, len(model) + 1))
        tokens = np.concatenate([model.tokens[:keep], rng.integers(0, shape.vocabulary, int(rng.integers(0, 2)))])
    else:
        tokens = rng.integers(0, shape.vocabulary, int(rng.integers(0, shape.longest + 1)))
    sampled = rng.random(len(tokens)) < 0.8 if shape.forced else None
    logprobs = -rng.random(len(tokens))
    return Segment(tokens.astype(np.int64), parent, sampled, logprobs)


def groups(shape: Shape = Shape()) -> st.SearchStrategy[Group]:
    """Hypothesis strategy; shrinks towards small seeds only, which is enough to name a failing case."""
    return st.integers(0, 2**32 - 1).map(lambda seed: random_group(np.random.default_rng(seed), shape))


def flat(groups: list[Group]) -> list[list[tuple[int | None, Finish, list[int]]]]:
    """What was sampled, ready to compare: parent, end and tokens of every segment."""
    return [[(s.parent, s.finish, s.tokens.tolist()) for s in g.segments] for g in groups]


def k_by_m(rewards: np.ndarray, thought: list[int] | int = 3, answer: int = 2) -> Group:
    """A K x M group without accidental overlap; `thought` gives the length of each thought."""
    k, m = rewards.shape
    lengths = [thought] * k if isinstance(thought, int) else thought
    fresh = iter(range(10, 10_000_000))
    segments = [Segment(np.array([next(fresh) for _ in range(lengths[i])])) for i in range(k)]
    for i in range(k):
        for j in range(m):
            tokens = np.array([next(fresh) for _ in range(answer + j)])
            segments.append(Segment(tokens, parent=i, reward=float(rewards[i, j])))
    return Group(np.array([1]), tuple(segments))
