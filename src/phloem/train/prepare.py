"""What happens before the first step: the folder, the process, the cold start."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from accelerate.utils import set_seed
from transformers.utils.logging import disable_progress_bar

from phloem import presets, tasks
from phloem.config import TrainConfig
from phloem.sample import check_engine
from phloem.tasks.enough import require_enough
from phloem.tasks.task import Task
from phloem.train.cold_start import cold_start, demonstration_rows
from phloem.train.folder import RunFolder
from phloem.train.policy import Policy
from phloem.train.ranks import Ranks
from phloem.train.trackers import require_trackers
from phloem.train.view import View

__all__ = ["checked_task", "open_folder", "run_cold_start", "set_up_process"]


def open_folder(config: TrainConfig, ranks: Ranks, resume: bool) -> RunFolder:
    """The first process makes the folder, or opens it again; the others learn where it is."""
    own: list[RunFolder] = []

    def opened() -> Path:
        own.append(RunFolder.again(config) if resume else RunFolder.make(config))
        return own[0].path

    path = ranks.from_first(opened)
    return own[0] if ranks.first else RunFolder.of_another(path)


def checked_task(config: TrainConfig, given: Task | None = None) -> Task:
    """The task of a run (`given`, or the one that the settings name), after all that can be judged without a model.

    Raises:
        ConfigError: a rule, sampler, tracker or data set that cannot be used as the settings say.
    """
    presets.from_config(config.credit, config.sample.max_completion_tokens)
    task = tasks.get(config.task, config.run.seed) if given is None else given
    check_engine(config.sample)
    require_trackers(config)
    require_enough(task, config)
    return task


def set_up_process(config: TrainConfig) -> None:
    """Threads, seeds, and quiet from the libraries."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    disable_progress_bar()  # the view shows how far things are
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    set_seed(config.run.seed)


def run_cold_start(policy: Policy, task: Task, folder: RunFolder, view: View, ranks: Ranks) -> None:
    """The supervised steps before the first training step, if the settings ask for any."""
    config = policy.config.cold_start
    if not config.steps:
        return
    rows = demonstration_rows(task.train, policy.prompt_ids, policy.demonstration_ids)
    view.phase("cold start", config.steps)
    losses = cold_start(policy.model, rows, config, policy, policy.config.run.seed, ranks)
    for step, loss in enumerate(losses, start=1):
        folder.metrics({"kind": "cold_start", "step": step, "loss": loss})
        view.advance(step, f"loss {loss:.3f}")
    policy.model.eval()
