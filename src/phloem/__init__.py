"""Reinforcement learning with verifiable rewards for language models, on prefix trees.

The settings of a run are at hand here; everything else is one import further, by the name of its part:
`phloem.tree`, `phloem.credit`, `phloem.train` and so on, loaded when first used. Importing `phloem` loads no torch.
"""

import os
from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"

# Spinning OpenMP threads slow each other down a hundredfold where cores are shared. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from phloem import presets
from phloem.config import (
    AlarmsConfig,
    ColdStartConfig,
    CreditConfig,
    EvaluateConfig,
    EvaluationConfig,
    ForkConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    TaskConfig,
    TrainConfig,
    VLLMConfig,
)
from phloem.kinds import ConfigError, PhloemError
from phloem.settings import load_config, to_yaml

__all__ = [
    "AlarmsConfig",
    "ColdStartConfig",
    "ConfigError",
    "CreditConfig",
    "EvaluateConfig",
    "EvaluationConfig",
    "ForkConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimConfig",
    "PhloemError",
    "RunConfig",
    "SampleConfig",
    "TaskConfig",
    "TrainConfig",
    "VLLMConfig",
    "load_config",
    "presets",
    "to_yaml",
]

_PARTS = frozenset(
    {
        "analysis",
        "credit",
        "doctor",
        "evaluate",
        "forward",
        "loss",
        "models",
        "rewards",
        "sample",
        "studies",
        "tasks",
        "train",
        "tree",
    }
)


def __getattr__(name: str) -> ModuleType:
    if name in _PARTS:
        return import_module(f"phloem.{name}")
    raise AttributeError(f"module 'phloem' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS})
