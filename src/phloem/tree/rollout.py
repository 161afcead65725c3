"""What was sampled for one prompt: segments, and the group they form.

A segment is a run of tokens sampled in one go. A rollout is a path from the prompt to a leaf segment and has one
reward. A group is everything sampled for one prompt in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64

__all__ = ["Finish", "Group", "Segment"]


class Finish(StrEnum):
    """Why sampling of a segment ended."""

    FORK = "fork"
    """The text or budget at which the sampler forks was reached."""
    STOP = "stop"
    """An end-of-sequence id, which is the segment's last token."""
    LENGTH = "length"
    """The token budget."""


LARGEST = float(np.finfo(np.float32).max)
"""Bound on rewards: credit reaches the loss in float32."""


def _ids(what: str, given: object) -> Int64[np.ndarray, " n"]:
    """Token ids as int64; numbers of another type are refused, not cut off."""
    ids = np.asarray(given)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"{what} must be a flat array of integers, not {ids.dtype} {ids.shape}")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < 2**32 - 1:
        raise ValueError(f"token ids must lie in [0, 2**32 - 2], got {int(ids.min())}..{int(ids.max())}")
    return ids.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Segment:
    """A run of tokens sampled in one go.

    Attributes:
        tokens: ids, integers of shape (n,), kept as int64; n may be 0.
        parent: index in the group of the segment that this one continues; None: it starts at the prompt.
        sampled: shape (n,); False marks forced text, which is context and is never counted or trained. None: all
            sampled.
        logprobs: shape (n,), in nats, as the sampler reported them at the sampling temperature; NaN where forced.
        finish: why sampling ended.
        reward: of a leaf, finite in float32; None: not scored.

    Raises:
        ValueError: arrays of another shape or type, negative ids, a reward that is not finite.
    """

    # Loosely annotated: whatever comes in is judged below, with an error that says more than a type checker's.
    tokens: np.ndarray
    parent: int | None = None
    sampled: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    finish: Finish = Finish.STOP
    reward: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", _ids("segment tokens", self.tokens))
        for name, kind, wanted in (("sampled", "b", "true or false"), ("logprobs", "f", "floats")):
            given: object = getattr(self, name)
            if given is None:
                continue
            array = np.asarray(given)
            if array.shape != self.tokens.shape:
                raise ValueError(f"segment {name} has shape {array.shape}, its tokens {self.tokens.shape}")
            if array.size and array.dtype.kind != kind:
                raise ValueError(f"segment {name} holds {array.dtype}; it takes {wanted}")
            object.__setattr__(self, name, array)
        if self.reward is not None and not abs(self.reward) <= LARGEST:
            raise ValueError(f"reward is {self.reward}; it must be finite in float32, or None for not scored")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sampled_mask(self) -> Bool[np.ndarray, " n"]:
        """True where the policy sampled the token, shape (n,)."""
        return np.ones(len(self.tokens), dtype=bool) if self.sampled is None else self.sampled


@dataclass(frozen=True, eq=False)
class Group:
    """All segments sampled for one prompt in one step; parents come before their children.

    Raises:
        ValueError: an empty prompt, a parent that does not come before its child, a reward on an inner segment.
    """

    prompt: np.ndarray
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _ids("the prompt", self.prompt))
        if not self.prompt.size:
            raise ValueError("the prompt needs at least one token (a BOS will do): nothing predicts the first token")
        object.__setattr__(self, "segments", tuple(self.segments))
        for s, segment in enumerate(self.segments):
            if segment.parent is not None and not 0 <= segment.parent < s:
                raise ValueError(f"segment {s} names parent {segment.parent}; a parent comes before its children")
        leaves = set(self.leaves)
        for s, segment in enumerate(self.segments):
            if segment.reward is not None and s not in leaves:
                raise ValueError(f"segment {s} has children and a reward; only leaves are rewarded")

    @classmethod
    def from_rollouts(
        cls,
        prompt: Sequence[int] | np.ndarray,
        completions: Sequence[Sequence[int] | np.ndarray],
        rewards: Sequence[float | None] | None = None,
    ) -> Group:
        """A plain group: one segment per completion, no forks.

        Raises:
            ValueError: as many rewards as completions are needed.
        """
        given = [None] * len(completions) if rewards is None else list(rewards)
        if len(given) != len(completions):
            raise ValueError(f"{len(completions)} completions and {len(given)} rewards")
        segments = tuple(
            Segment(np.asarray(c), reward=None if r is None else float(r))
            for c, r in zip(completions, given, strict=True)
        )
        return cls(np.asarray(prompt), segments)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Indices of the segments without children: the rollouts, in order."""
        inner = {segment.parent for segment in self.segments}
        return tuple(s for s in range(len(self.segments)) if s not in inner)

    @property
    def group_size(self) -> int:
        """Number of rollouts."""
        return len(self.leaves)

    @cached_property
    def levels_S(self) -> Int64[np.ndarray, " S"]:
        """1 for segments that start at the prompt, 2 for their children, ..."""
        levels = np.ones(len(self.segments), dtype=np.int64)
        for s, segment in enumerate(self.segments):
            if segment.parent is not None:
                levels[s] = levels[segment.parent] + 1
        return levels

    @cached_property
    def parents_S(self) -> Int64[np.ndarray, " S"]:
        """Index of each segment's parent, -1 for those that start at the prompt."""
        return np.array([-1 if s.parent is None else s.parent for s in self.segments], dtype=np.int64)

    @cached_property
    def rewards_R(self) -> Float64[np.ndarray, " R"]:
        """Reward of each rollout; NaN: not scored."""
        rewards = [self.segments[leaf].reward for leaf in self.leaves]
        return np.array(rewards, dtype=np.float64)  # None becomes NaN

    def path(self, leaf: int) -> tuple[int, ...]:
        """Segment indices from the prompt to segment `leaf`, which comes last."""
        steps = [leaf]
        while (parent := self.segments[steps[-1]].parent) is not None:
            steps.append(parent)
        return tuple(reversed(steps))

    def completion(self, rollout: int) -> Int64[np.ndarray, " L"]:
        """Token ids of one rollout, forced text included."""
        return np.concatenate([self.segments[s].tokens for s in self.path(self.leaves[rollout])])

    def completion_sampled(self, rollout: int) -> Bool[np.ndarray, " L"]:
        """Which tokens of one rollout the policy sampled."""
        return np.concatenate([self.segments[s].sampled_mask for s in self.path(self.leaves[rollout])])

    def with_rewards(self, rewards: Sequence[float | None]) -> Group:
        """The same group with one reward (or None: not scored) per rollout, in the order of `leaves`.

        Raises:
            ValueError: another number of rewards than rollouts.
        """
        if len(rewards) != self.group_size:
            raise ValueError(f"{self.group_size} rollouts and {len(rewards)} rewards")
        segments = list(self.segments)
        for leaf, reward in zip(self.leaves, rewards, strict=True):
            segments[leaf] = replace(segments[leaf], reward=None if reward is None else float(reward))
        return Group(self.prompt, tuple(segments))

    @cached_property
    def scored_segments(self) -> tuple[int, ...]:
        """Indices of the segments with at least one scored leaf below (or that are one)."""
        keep: set[int] = set()
        for leaf in self.leaves:
            if self.segments[leaf].reward is not None:
                keep.update(self.path(leaf))
        return tuple(sorted(keep))

    def scored(self) -> Group:
        """The group without rollouts that were not scored; segments left without a scored leaf go too.

        Rewards, statistics, counts and the tree are taken of what is left, so a rollout lost to an infrastructure
        fault is as if it had not been sampled.
        """
        kept = self.scored_segments
        if len(kept) == len(self.segments):
            return self
        new_index = {old: new for new, old in enumerate(kept)}
        segments: list[Segment] = []
        for old in kept:
            segment = self.segments[old]
            parent = None if segment.parent is None else new_index[segment.parent]
            segments.append(replace(segment, parent=parent))
        return Group(self.prompt, tuple(segments))
