"""The settings of a run as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from phloem.config.credit import CreditConfig
from phloem.config.model import ModelConfig
from phloem.config.optim import ColdStartConfig, OptimConfig
from phloem.config.run import AlarmsConfig, EvaluationConfig, RunConfig
from phloem.config.sample import SampleConfig
from phloem.config.task import HELD_OUT, TaskConfig
from phloem.kinds import check_fields, require

__all__ = ["TrainConfig"]


@dataclass(frozen=True)
class TrainConfig:
    """Everything `phloem train` needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    cold_start: ColdStartConfig = field(default_factory=ColdStartConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    run: RunConfig = field(default_factory=RunConfig)
    alarms: AlarmsConfig = field(default_factory=AlarmsConfig)

    def __post_init__(self) -> None:
        check_fields(self, "")
        sample = self.sample
        require(
            sample.engine == "hf" or sample.whole_distribution or sample.temperature == 1,
            f"sample.engine {sample.engine} reports logprobs of the whole distribution with top_p < 1 or top_k > 0 "
            "only at temperature 1: set sample.temperature 1, drop top_p and top_k, or use sample.engine hf",
        )
        require(
            self.sample.group_size > 1,
            "sample.thoughts x sample.answers (or the product of sample.forks) is 1: a group of one rollout has no "
            "baseline; raise one of them",
        )
        require(
            self.evaluation.every == 0 or self.evaluation.prompts != 0,
            "evaluation.every is set and evaluation.prompts is 0: set evaluation.prompts or drop evaluation.every",
        )
        held_out = self.task.held_out_size or HELD_OUT
        require(
            (self.evaluation.prompts or 0) <= held_out,
            f"evaluation.prompts is {self.evaluation.prompts} and task.held_out_size {held_out}: "
            "raise task.held_out_size, or lower evaluation.prompts",
        )
