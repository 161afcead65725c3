"""Training, from settings to a trained policy: sample, reward, tree, credit, backward, step.

Reads from top to bottom. What a rule does to credit is data (`phloem.presets`); nothing here knows one by name.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from torch.optim.lr_scheduler import LambdaLR
from transformers.utils.logging import disable_progress_bar

from phloem import presets, tasks
from phloem.config import ConfigError, TrainConfig
from phloem.evaluate.held_out import Gain, HeldOut, paired_gain
from phloem.kinds import PhloemError
from phloem.loss import LossSums
from phloem.sample import ForkPlan, Sampler, check_engine, make_sampler
from phloem.tasks.enough import require_enough
from phloem.tasks.task import Example, Task
from phloem.train.alarms import Alarms
from phloem.train.cold_start import cold_start, demonstration_rows
from phloem.train.evaluation import Evaluator, score_groups
from phloem.train.folder import RunFolder, group_record
from phloem.train.metrics import step_metrics
from phloem.train.policy import Policy
from phloem.train.report import report
from phloem.train.schedule import rate_factor
from phloem.train.shaping import shaped
from phloem.train.speed import Speed, expected_plan
from phloem.train.step import Batch, Objective, Reference, make_batch, update
from phloem.train.unchanged import why_unchanged
from phloem.train.view import View

__all__ = ["RunResult", "TrainError", "train"]

TRAINING, HELD_OUT = 0, 1
"""First part of a sampler's key: rollouts of training and of evaluation never share random numbers."""


class TrainError(PhloemError):
    """Training cannot go on, or changed nothing; the message says why and what to do."""


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind.

    Attributes:
        folder: the run folder.
        steps: training steps taken.
        before, after: held-out evaluations; None where evaluation.prompts is 0.
        gain: of `after` over `before`, paired by prompt.
        constant_baseline: mean held-out reward of always giving the commonest gold answer.
        model, tokenizer: the trained policy.
    """

    folder: Path
    steps: int
    before: HeldOut | None
    after: HeldOut | None
    gain: Gain | None
    constant_baseline: float | None
    model: Any
    tokenizer: Any


def train(config: TrainConfig, task: Task | None = None) -> RunResult:
    """Trains a policy as the settings say and fills a run folder.

    Args:
        config: the settings.
        task: prompts, answers and rewards; None: the one that `config.task` names. With a task of one's own, only
            `task.system_prompt` and `task.chat_template` of the settings are used, and the rest is said to be idle.

    Raises:
        ConfigError: settings that cannot be honoured; before a model loads wherever that can be known.
        PhloemError: a model, data set or reward that cannot be used, or a run that trained nothing.
    """
    rule = presets.from_config(config.credit, config.sample.max_completion_tokens)
    credit = config.credit
    objective = Objective(rule, config.sample.temperature, credit.dual_clip, credit.entropy, credit.tis_cap)
    idle = None if task is None else _idle_settings(config)
    task = tasks.get(config.task, config.run.seed) if task is None else task
    if idle is not None:
        config = replace(config, task=replace(config.task, name=task.name))
    check_engine(config.sample)
    require_enough(task, config)
    folder, view = RunFolder(config), View(config.run.view)
    try:
        view.say(f"run folder {folder.path}")
        for note in (*getattr(task, "notes", ()), *(idle or ())):
            view.say(f"{task.name}: {note}")
        _set_up_process(config)
        policy = Policy.load(config, view.say)
        view.say(
            f"{config.model.path}: {sum(p.numel() for p in policy.trained):,} trained parameters on "
            f"{policy.device}, tree attention {policy.engine!r}"
        )
        _check_prompts(policy, task)
        view.say(f"at full lengths: {expected_plan(policy, task)}")
        _cold_start(policy, task, folder, view)
        trainer = _Trainer(policy, task, objective, folder, view)
        before = trainer.evaluate(0, config.evaluation.prompts, "held-out before")
        try:
            trainer.run()
        except (KeyboardInterrupt, PhloemError):
            _keep(trainer, policy, folder, view)
            raise
        if config.run.save_model:  # before the last evaluation: what ends that early loses no weights
            policy.save(folder.path / "model")
        after = trainer.evaluate(config.optim.steps, config.evaluation.prompts, "held-out after")
        result = RunResult(
            folder=folder.path,
            steps=config.optim.steps,
            before=before,
            after=after,
            gain=paired_gain(before, after) if before is not None and after is not None else None,
            constant_baseline=trainer.evaluate.constant_baseline,
            model=policy.model,
            tokenizer=policy.tokenizer,
        )
        view.close()
        report(result, config, folder, view)
        return result
    finally:
        view.close()
        folder.close()


def _keep(trainer: _Trainer, policy: Policy, folder: RunFolder, view: View) -> None:
    """Saves the policy of a run that stops on the way."""
    view.close()
    if trainer.done and policy.config.run.save_model:
        policy.save(folder.path / "model")
        view.say(f"stopped after step {trainer.done}; the policy of then is in {folder.path / 'model'}")


def _check_prompts(policy: Policy, task: Task) -> None:
    """Every prompt that will be used must leave room for a completion in the model's context."""
    config = policy.config
    context = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    for example in (*task.train, *task.held_out[: config.evaluation.prompts]) if context else ():
        length = len(policy.prompt_ids(example))
        if length + config.sample.max_completion_tokens > context:
            raise ConfigError(
                f"the prompt of example {example.id} has {length} tokens; with {config.sample.max_completion_tokens} "
                f"for the completion that is over the model's context of {context}. Shorten it, drop it, or lower "
                "sample.thought_tokens and sample.answer_tokens"
            )


def _idle_settings(config: TrainConfig) -> tuple[str, ...]:
    """What the settings say of a built-in task while the task comes from Python."""
    fields = ("name", "args", "train_size", "held_out_size", "format_weight")
    default = type(config.task)()
    changed = [f"task.{name}" for name in fields if getattr(config.task, name) != getattr(default, name)]
    return (f"given from Python, so these settings do nothing: {', '.join(changed)}",) if changed else ()


def _set_up_process(config: TrainConfig) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    disable_progress_bar()  # the view shows how far things are
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    set_seed(config.run.seed)


def _cold_start(policy: Policy, task: Task, folder: RunFolder, view: View) -> None:
    config = policy.config.cold_start
    if not config.steps:
        return
    rows = demonstration_rows(task.train, policy.prompt_ids, policy.demonstration_ids)
    view.phase("cold start", config.steps)
    losses = cold_start(policy.model, rows, config, policy, policy.config.run.seed)
    for step, loss in enumerate(losses, start=1):
        folder.metrics({"kind": "cold_start", "step": step, "loss": loss})
        view.advance(step, f"loss {loss:.3f}")
    policy.model.eval()


class _Trainer:
    """The policy with its optimiser, sampler and logs; `run` takes all steps."""

    def __init__(self, policy: Policy, task: Task, objective: Objective, folder: RunFolder, view: View) -> None:
        config = policy.config
        self.policy, self.task, self.objective, self.config = policy, task, objective, config
        self.folder, self.view = folder, view
        self.sampler: Sampler = make_sampler(
            policy.model, policy.tokenizer, config.sample, eos_ids=policy.end_ids, seed=config.run.seed
        )
        self.plan = ForkPlan.from_config(config.sample)
        self.evaluate = Evaluator(policy, task, self.sampler, folder, view, HELD_OUT)
        self.speed = Speed(policy)
        self.reference = Reference(policy.model) if objective.rule.beta > 0 else None
        optimiser = torch.optim.AdamW(
            policy.trained, lr=config.optim.lr, betas=config.optim.betas, weight_decay=config.optim.weight_decay
        )
        self.schedule = LambdaLR(optimiser, partial(rate_factor, config=config.optim))
        self.optimiser = policy.accelerator.prepare(optimiser)
        self.done = 0

    def run(self) -> None:
        """Takes `optim.steps` steps; evaluates and keeps the best policy in between, if asked to."""
        every, steps = self.config.evaluation.every, self.config.optim.steps
        start, best = self.policy.fingerprint(), float("-inf")
        alarms = Alarms(self.config)
        self.view.phase("training", steps)
        for step, examples in enumerate(_batches(self.task.train, self.config), start=1):
            record = self.step(step, examples)
            self.done = step
            self.folder.metrics(record)
            self.view.step(step, record)
            for alarm in alarms(record):
                self.folder.metrics({"kind": "alarm", "step": step, **alarm._asdict()})
                if alarm.stop:
                    raise TrainError(alarm.message)
                self.view.say(f"WARNING: {alarm.message}")
            if every and step % every == 0 and step < steps:
                found = self.evaluate(step, self.config.evaluation.prompts_between, "held-out")
                if found is not None and found.mean > best:
                    best = found.mean
                    self.policy.save(self.folder.path / "best")
                self.view.phase("training", steps, done=step)
        if self.policy.fingerprint() == start:
            raise TrainError(why_unchanged(self.folder.path, self.config))

    def step(self, step: int, examples: Sequence[Example]) -> dict[str, Any]:
        """One training step: sample, reward, tree, credit, backward, update. Returns its metrics."""
        clock = _Clock()
        keys = [(TRAINING, step, i) for i in range(len(examples))]
        prompts = [self.policy.prompt_ids(example) for example in examples]
        groups = self.sampler.sample(prompts, self.plan, keys)
        clock.lap("sample")

        verdicts = score_groups(self.policy, self.task, groups, examples)
        groups = [g.with_rewards([v.reward for v in own]) for g, own in zip(groups, verdicts, strict=True)]
        groups = [shaped(g, self.config) for g in groups]
        clock.lap("reward")

        batch = make_batch(groups, self.objective, self.config.optim.pack_tokens, self.policy.device)
        rate = self.schedule.get_last_lr()[0]
        batch, sums, norms = self._update(batch, step)
        clock.lap("update")

        described = zip(examples, groups, batch.credits, verdicts, strict=True)
        self.folder.rollouts([group_record(step, e, g, c, v, self.policy.raw_text) for e, g, c, v in described])
        figures = step_metrics(groups, len(self.plan.stages), verdicts, batch, sums, norms)
        return {"kind": "train", "step": step, **figures, "lr": rate, **self.speed.figures(batch), **clock.seconds()}

    def _update(self, batch: Batch, step: int) -> tuple[Batch, LossSums, list[float]]:
        """The step's optimiser updates; none if no group has anything to train."""
        model, sums, norms = self.policy.model, LossSums(), []
        if not batch.packs:
            self._advance_schedule(self.config.optim.updates_per_step)
            return batch, sums, norms
        model.train()
        if self.reference is not None:
            batch = self.reference.fill(model, batch, self.objective, self.policy)
        for _ in range(self.config.optim.updates_per_step):
            with self.speed.timed():
                batch, sums = update(model, batch, self.objective, self.policy)
            norms.append(self._clip_gradient(step))
            self.optimiser.step()
            self._advance_schedule(1)
            self.optimiser.zero_grad(set_to_none=True)
        self.speed.compare_with_rows(batch)
        model.eval()
        self.sampler.sync()
        return batch, sums, norms

    def _advance_schedule(self, updates: int) -> None:
        """The schedule counts planned updates, so that a step with nothing to train does not stretch it."""
        with warnings.catch_warnings():  # a first step without an update is no mistake in the order of calls
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for _ in range(updates):
                self.schedule.step()

    def _clip_gradient(self, step: int) -> float:
        """Clips the gradient to `optim.max_grad_norm` and returns its norm before that."""
        bound = self.config.optim.max_grad_norm
        norm = self.policy.accelerator.clip_grad_norm_(self.policy.trained, float("inf") if bound is None else bound)
        value = float(norm) if norm is not None else 0.0
        if not np.isfinite(value):
            raise TrainError(
                f"the gradient of step {step} is not finite, and its update was not taken. Lower optim.lr, or train in "
                "float32 (model.autocast false)"
            )
        return value


def _batches(examples: Sequence[Example], config: TrainConfig) -> Iterator[list[Example]]:
    """The examples of each step: every epoch is a fresh permutation, and a batch may run into the next one."""
    order: list[int] = []
    epoch = 0
    for _ in range(config.optim.steps):
        while len(order) < config.optim.prompts_per_step:
            order += np.random.default_rng([config.run.seed, epoch]).permutation(len(examples)).tolist()
            epoch += 1
        yield [examples[i] for i in order[: config.optim.prompts_per_step]]
        order = order[config.optim.prompts_per_step :]


class _Clock:
    """Seconds of the parts of a step."""

    def __init__(self) -> None:
        self._start = self._last = perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = perf_counter()
        self._laps[f"seconds/{name}"] = now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        return {**self._laps, "seconds": perf_counter() - self._start}
