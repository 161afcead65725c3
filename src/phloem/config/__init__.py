"""The settings of a run and of an evaluation: frozen dataclasses that import nothing heavy.

A run is described by one `TrainConfig`, an evaluation by one `EvaluateConfig`. Every field can be set in a YAML file
and on the command line (`--sample.thoughts 8`); the command line beats the file, the file beats the defaults here.
Values that can be judged without loading a model are judged when the object is made, with an error that names the
field.
"""

from phloem.config.credit import CreditConfig
from phloem.config.evaluate import DrawConfig, EvaluateConfig, PromptConfig, SubjectConfig
from phloem.config.model import LoraConfig, ModelConfig
from phloem.config.optim import ColdStartConfig, OptimConfig
from phloem.config.run import AlarmsConfig, EvaluationConfig, RunConfig
from phloem.config.sample import ForkConfig, SampleConfig, VLLMConfig
from phloem.config.task import HELD_OUT, TaskConfig
from phloem.config.train import TrainConfig
from phloem.kinds import ConfigError

__all__ = [
    "HELD_OUT",
    "AlarmsConfig",
    "ColdStartConfig",
    "ConfigError",
    "CreditConfig",
    "DrawConfig",
    "EvaluateConfig",
    "EvaluationConfig",
    "ForkConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimConfig",
    "PromptConfig",
    "RunConfig",
    "SampleConfig",
    "SubjectConfig",
    "TaskConfig",
    "TrainConfig",
    "VLLMConfig",
]
