"""Whether a task has what a run asks of it."""

from __future__ import annotations

from phloem.config import TrainConfig
from phloem.kinds import ConfigError
from phloem.tasks.task import Task

__all__ = ["require_enough"]


def require_enough(task: Task, config: TrainConfig) -> None:
    """Raises ConfigError: fewer examples than a batch, fewer held-out ones than are to be sampled, or a cold start
    without demonstrations."""
    have, need = len(task.train), config.optim.prompts_per_step
    if have < need:
        raise ConfigError(
            f"task {task.name} has {have} training examples and optim.prompts_per_step is {need}: lower it, or give "
            "the task more data"
        )
    if len(task.held_out) < (config.evaluation.prompts or 0):
        raise ConfigError(
            f"task {task.name} has {len(task.held_out)} held-out examples and evaluation.prompts is "
            f"{config.evaluation.prompts}: lower it (0: no evaluation), or raise task.held_out_size"
        )
    if config.cold_start.steps and not any(example.demonstrations for example in task.train):
        raise ConfigError(
            f"cold_start.steps is {config.cold_start.steps} and task {task.name} has no demonstrations: set it to 0"
        )
