"""The studies by name; nothing heavy is imported before one runs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from phloem.kinds import ConfigError
from phloem.settings import nearest

if TYPE_CHECKING:
    from phloem.studies.study import Study

__all__ = ["NAMES", "get"]

NAMES = {
    "equivalence": "GRPO is a process reward model: where that holds exactly, where it breaks, by how much",
    "structure": "how much of a group's rollouts is shared, over training and against reward",
    "frequency-flaw": "how often GRPO pushes down a prefix of a group's best rollout",
    "binary-tree": "lambda-GRPO against GRPO on a tree of depth 4, with controls",
    "lambda-cost": "seconds per token of the credit against those of a training step",
    "speed-to-peak": "steps and seconds to the best held-out reward, lambda-GRPO against GRPO",
    "thought-variance": "variance of a thought's advantage: formula, simulation, a real model",
    "gradient-spikes": "gradient norms, spike scores and the coupling of thoughts and answers",
    "answers-per-thought": "held-out reward for 1 to 8 answers per thought, at equal tokens and time",
    "time-per-step": "sampling, update and total seconds of a step by shape; time to a target",
    "combination": "lambda weights inside GRPO-MA, and what becomes of noise thoughts",
    "matrix": "the shared training runs that seven of the studies read",
}
"""Name to what it asks. A study lives in the module of its name."""


def get(name: str) -> Study:
    """The study of a name.

    Raises:
        ConfigError: there is none; the message names the nearest.
    """
    if name not in NAMES:
        raise ConfigError(f"{name} is not a study; did you mean {nearest(name, list(NAMES))}? `phloem study list`")
    return import_module(f"phloem.studies.{name.replace('-', '_')}").STUDY
