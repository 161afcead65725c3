"""Which training examples come next."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from phloem.tasks.task import Example, Task

__all__ = ["PromptStream", "digest"]


class PromptStream:
    """Training examples without end: every epoch is a fresh permutation, and a batch may run into the next one.

    What comes next depends on the seed and on how many were taken, and on nothing else.

    Attributes:
        taken: how many examples were taken so far.
    """

    def __init__(self, examples: Sequence[Example], seed: int, taken: int = 0) -> None:
        self.taken = taken
        self._examples = examples
        self._order = lru_cache(maxsize=2)(
            lambda epoch: np.random.default_rng([seed, epoch]).permutation(len(examples)).tolist()
        )

    def take(self, count: int) -> list[Example]:
        """The next `count` examples."""
        places = [divmod(i, len(self._examples)) for i in range(self.taken, self.taken + count)]
        self.taken += count
        return [self._examples[self._order(epoch)[place]] for epoch, place in places]


def digest(task: Task) -> str:
    """A digest of the training examples in their order; a run that goes on must find the same ones."""
    found = hashlib.blake2b(digest_size=16)
    for example in task.train:
        found.update(repr((example.id, example.prompt, example.answer)).encode())
    return found.hexdigest()
