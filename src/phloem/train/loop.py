"""Training, from settings to a trained policy: sample, reward, tree, credit, backward, step.

Reads from top to bottom. What a rule does to credit is data (`phloem.presets`); nothing here knows one by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from phloem import presets
from phloem.config import TrainConfig
from phloem.evaluate.held_out import Gain, HeldOut, paired_gain
from phloem.kinds import PhloemError, Stopped
from phloem.loss import LossSums
from phloem.sample import ForkPlan, Sampler, make_sampler, narrowed
from phloem.tasks.task import Task
from phloem.train.alarms import Alarms
from phloem.train.checkpoint import Checkpoints, Progress, Saved
from phloem.train.evaluation import Evaluator
from phloem.train.fitting import fit_prompts
from phloem.train.folder import RunFolder
from phloem.train.idle import idle_beside_others, idle_without_task
from phloem.train.keeper import Keeper
from phloem.train.metrics import rethinks, step_metrics
from phloem.train.optimiser import Optimiser
from phloem.train.policy import Policy
from phloem.train.prepare import checked_task, open_folder, run_cold_start, set_up_process
from phloem.train.prompts import PromptStream, digest
from phloem.train.ranks import Ranks
from phloem.train.refill import Drawn, records, sampled_metrics, with_spread
from phloem.train.report import report
from phloem.train.resume import require_same_run
from phloem.train.rollouts import Collector
from phloem.train.shaping import shaped
from phloem.train.speed import Speed, expected_plan
from phloem.train.step import Batch, Objective, Reference, make_batch, update
from phloem.train.stop import StopSignals
from phloem.train.trackers import Trackers
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


def train(config: TrainConfig, task: Task | None = None, *, resume: bool = False) -> RunResult:
    """Trains a policy as the settings say and fills a run folder.

    Args:
        config: the settings.
        task: prompts, answers and rewards; None: the one that `config.task` names. With a task of one's own, the
            settings that make up a built-in one do nothing, and are said to be idle.
        resume: go on with the run in `config.run.folder`, from its newest complete checkpoint. On CPU, and with as
            many processes as before, the result is the one of a run that never stopped, bit for bit.

    Raises:
        ConfigError: settings that cannot be honoured; before a model loads wherever that can be known.
        PhloemError: a model, data set or reward that cannot be used, or a run that trained nothing.
        Stopped: Ctrl-C or SIGTERM; a checkpoint of the last finished step is in the folder.
    """
    rule = presets.from_config(config.credit, config.sample.max_completion_tokens)
    credit = config.credit
    objective = Objective(rule, config.sample.temperature, credit.dual_clip, credit.entropy, credit.tis_cap)
    idle = idle_without_task(config) if task is not None else ()
    if task is not None:
        config = replace(config, task=replace(config.task, name=task.name))
    if resume:
        require_same_run(config)
    task = checked_task(config, task)
    ranks = Ranks.join()
    view = View(config.run.view if ranks.first else "none")
    folder = open_folder(config, ranks, resume)
    try:
        view.say(f"run folder {folder.path}")
        for note in idle_beside_others(config, rule):
            view.say(note)
        folder.trackers = Trackers(config, folder.path) if ranks.first else None
        for note in (*getattr(task, "notes", ()), *idle):
            view.say(f"{task.name}: {note}")
        with StopSignals(view.say) as stop:
            result = _run(_ready(config, task, objective, folder, view, ranks, resume), stop)
        view.close()
        if ranks.first:
            report(result, config, folder, view)
            if not config.run.save_model:
                Checkpoints(folder.path, 0).clear()
        return result
    except Stopped as stopped:
        raise Stopped(stopped.signal, stopped.args[0] or f"stopped; {folder.how_to_go_on}") from None
    finally:
        view.close()
        folder.close()
        if folder.trackers is not None:
            folder.trackers.close()


def _ready(
    config: TrainConfig,
    task: Task,
    objective: Objective,
    folder: RunFolder,
    view: View,
    ranks: Ranks,
    resume: bool,
) -> _Trainer:
    """Before the next step: of a new run after the cold start and the first evaluation, else from a checkpoint."""
    set_up_process(config)
    found = Checkpoints(folder.path, config.run.keep_checkpoints)
    saved = ranks.from_first(lambda: found.newest(view.say)) if resume else None
    if resume and saved is None:
        ranks.from_first(folder.require_nothing_logged)
        ranks.from_first(lambda: folder.write_settings(config))
    policy = Policy.load(config, view.say, None if saved is None else saved.model)
    view.say(
        f"{config.model.path}: {sum(p.numel() for p in policy.trained):,} trained parameters on "
        f"{policy.device}, tree attention {policy.engine!r}"
    )
    task = fit_prompts(policy, task, view.say)
    view.say(f"at full lengths: {expected_plan(policy, task)}")
    if saved is None:
        folder.rewind({})
        run_cold_start(policy, task, folder, view, ranks)
    ranks.require_equal("weights", policy.fingerprint())
    policy = policy.spread(ranks)
    trainer = _Trainer(policy, task, objective, folder, view, ranks)
    if saved is None:
        trainer.begin()
    else:
        trainer.restore(saved)
    return trainer


def _run(trainer: _Trainer, stop: StopSignals) -> RunResult:
    """The steps that are left and the last evaluation."""
    config, before = trainer.config, trainer.progress.before
    trainer.run(stop)
    after = trainer.evaluate(config.optim.steps, config.evaluation.prompts, "held-out after")
    return RunResult(
        folder=trainer.folder.path,
        steps=config.optim.steps,
        before=before,
        after=after,
        gain=paired_gain(before, after) if before is not None and after is not None else None,
        constant_baseline=trainer.evaluate.constant_baseline,
        model=trainer.policy.model,
        tokenizer=trainer.policy.tokenizer,
    )


class _Trainer:
    """The policy with its optimiser, sampler and logs; `run` takes the steps that are left."""

    def __init__(
        self, policy: Policy, task: Task, objective: Objective, folder: RunFolder, view: View, ranks: Ranks
    ) -> None:
        config = policy.config
        self.policy, self.task, self.objective, self.config = policy, task, objective, config
        self.folder, self.view, self.ranks = folder, view, ranks
        self.sampler: Sampler = make_sampler(
            policy.model, policy.tokenizer, config.sample, eos_ids=policy.end_ids, seed=config.run.seed
        )
        if (narrower := narrowed(config.sample)) is not None:
            view.say(f"WARNING: {narrower}")
        self.plan = ForkPlan.from_config(config.sample)
        self.prompts = PromptStream(task.train, config.run.seed)
        self.collect = Collector(policy, task, self.sampler, ranks)
        self.evaluate = Evaluator(self.collect, folder, view, HELD_OUT)
        self.speed = Speed(policy, ranks)
        self.reference = Reference(policy.trainee) if objective.rule.beta > 0 else None
        self.optimiser = Optimiser(policy.updated, config.optim)
        self.keeper = Keeper(policy, self.optimiser, self.reference, self.prompts, digest(task), folder, ranks)
        self.progress = Progress(start=policy.fingerprint())
        self.moved = False

    def begin(self) -> None:
        """The first evaluation and the first checkpoint, so that neither they nor the cold start are done again."""
        if self.config.run.checkpoint_every:
            self.keeper.require_room()
        self.progress.before = self.evaluate(0, self.config.evaluation.prompts, "held-out before")
        if self.config.run.checkpoint_every:
            self.keeper.save_reference()
            self.keeper.save(self.progress)

    def restore(self, saved: Saved) -> None:
        """Takes the place of the trainer that wrote a checkpoint."""
        for line in self.keeper.restore(saved):
            self.view.say(f"WARNING: {line}")
        self.progress = saved.progress
        self.moved = saved.weights != saved.progress.start
        self.view.say(f"going on after step {saved.progress.step} of {self.config.optim.steps}, from {saved.path}")
        if saved.processes != self.ranks.size:
            self.view.say(f"{saved.processes} processes wrote it, {self.ranks.size} go on: equal up to rounding")

    def run(self, stop: StopSignals) -> None:
        """Takes the steps that are left, then saves the policy.

        Raises:
            TrainError: an alarm that stops the run, or no weight changed.
            Stopped: a signal asked for it; a checkpoint is written.
        """
        try:
            with stop.deferred():
                self._take_steps(stop)
            if self.policy.fingerprint() == self.progress.start:
                raise TrainError(self.ranks.from_first(lambda: why_unchanged(self.folder.path, self.config)))
        except Stopped:
            raise
        except (KeyboardInterrupt, PhloemError):
            self._keep_policy()
            raise
        self._save_policy("model")  # before the last evaluation: what ends that early loses no weights

    def _take_steps(self, stop: StopSignals) -> None:
        progress, every, steps = self.progress, self.config.run.checkpoint_every, self.config.optim.steps
        alarms = Alarms(self.config)
        alarms.replay(self.ranks.from_first(self.folder.steps))
        self.view.phase("training", steps, done=progress.step)
        while progress.step < steps:
            record = self.step(progress.step + 1)
            progress.step += 1
            self._log(record, alarms)
            self._require_moved(record)
            self._evaluate_between()
            heard = next((number for number in self.ranks.gather(stop.heard) if number is not None), None)
            last = progress.step == steps
            if every and (heard or last or progress.step % every == 0):
                self.keeper.save(progress)
            if heard and not last:
                self._stop(heard)

    def _log(self, record: dict[str, Any], alarms: Alarms) -> None:
        self.folder.metrics(record)
        self.view.step(record["step"], record)
        for alarm in alarms(record):
            self.folder.metrics({"kind": "alarm", "step": record["step"], **alarm._asdict()})
            if alarm.stop:
                raise TrainError(alarm.message)
            self.view.say(f"WARNING: {alarm.message}")

    def _require_moved(self, record: dict[str, Any]) -> None:
        """The first update by a gradient must change a weight; looked at once."""
        if self.moved or not record["grad_norm"]:
            return
        self.moved = self.policy.fingerprint() != self.progress.start
        if not self.moved:
            raise TrainError(self.ranks.from_first(lambda: why_unchanged(self.folder.path, self.config)))

    def _evaluate_between(self) -> None:
        """Evaluates and keeps the best policy, if asked to and due."""
        config, step = self.config.evaluation, self.progress.step
        if not config.every or step % config.every or step == self.config.optim.steps:
            return
        found = self.evaluate(step, config.prompts_between, "held-out")
        if found is not None and found.mean > self.progress.best:
            self.progress.best = found.mean
            self._save_policy("best")
        self.view.phase("training", self.config.optim.steps, done=step)

    def _save_policy(self, name: str) -> None:
        if self.config.run.save_model or name == "best":
            self.ranks.from_first(lambda: self.policy.save(self.folder.path / name))

    def _keep_policy(self) -> None:
        """Saves the policy of a run that ends on the way; asks no other process, they may be gone."""
        self.view.close()
        if self.progress.step and self.config.run.save_model and self.ranks.first:
            self.policy.save(self.folder.path / "model")
            self.view.say(
                f"stopped after step {self.progress.step}; the policy of then is in {self.folder.path / 'model'}"
            )

    def _stop(self, heard: int) -> None:
        self.view.close()
        said = f"stopped after step {self.progress.step}; {self.folder.how_to_go_on}"
        if not self.config.run.checkpoint_every:
            self._save_policy("model")
            said = f"stopped after step {self.progress.step}; run.checkpoint_every is 0, so only its policy was kept"
        raise Stopped(heard, said)

    def step(self, step: int) -> dict[str, Any]:
        """One training step: sample, reward, tree, credit, backward, update. Returns its metrics."""
        begun = perf_counter()
        count, rounds = self.config.optim.prompts_per_step, self.config.sample.refill_rounds
        found, replaced = with_spread(partial(self._draw, step), count, rounds)

        collected = perf_counter()
        budget, cost = self.config.optim.pack_tokens, self.speed.cost
        batch = make_batch(found.groups, self.objective, budget, self.policy.device, self.ranks, cost)
        rate = self.optimiser.rate
        batch, sums, norms = self._update(batch, step)
        updated = perf_counter()

        self.folder.rollouts(records(step, found, batch.credits, replaced, self.policy.raw_text))
        figures = step_metrics(found.groups, len(self.plan.stages), found.verdicts, batch, sums, norms)
        figures |= sampled_metrics(found, replaced)
        figures["rethinks"] = rethinks(found.groups, self.plan, self.policy.text)
        seconds = {
            "seconds/sample": found.sample,
            "seconds/reward": found.reward,
            "seconds/update": max(self.ranks.gather(updated - collected)),
            "seconds": perf_counter() - begun,
        }
        return {"kind": "train", "step": step, **figures, "lr": rate, **self.speed.figures(batch), **seconds}

    def _draw(self, step: int, count: int, first: int) -> Drawn:
        """Groups of the next `count` prompts, rewarded as they train; `first` were sampled before in this step."""
        examples = self.prompts.take(count)
        found = self.collect(examples, self.plan, [(TRAINING, step, first + i) for i in range(count)])
        groups = [shaped(group, self.config) for group in found.groups]
        return Drawn(examples, groups, found.verdicts, found.sample, found.reward)

    def _update(self, batch: Batch, step: int) -> tuple[Batch, LossSums, list[float]]:
        """The step's optimiser updates; none if no group has anything to train."""
        model, sums, norms = self.policy.trainee, LossSums(), []
        if not batch.trees:
            self.optimiser.skip(self.config.optim.updates_per_step)
            return batch, sums, norms
        model.train()
        if self.reference is not None:
            batch = self.reference.fill(model, batch, self.objective, self.policy)
        for _ in range(self.config.optim.updates_per_step):
            with self.speed.timed():
                batch, own = update(model, batch, self.objective, self.policy)
            sums = LossSums.total(self.ranks.gather(own))
            self.optimiser.add_up(self.ranks)
            norms.append(self._clip_gradient(step))
            self.optimiser.step()
        self.speed.compare_with_rows(batch)
        model.eval()
        self.policy.publish()
        self.sampler.sync()
        return batch, sums, norms

    def _clip_gradient(self, step: int) -> float:
        norm = self.optimiser.clip_gradient()
        if not np.isfinite(norm):
            raise TrainError(
                f"the gradient of step {step} is not finite, and its update was not taken. Lower optim.lr, or train in "
                "float32 (model.autocast false)"
            )
        return norm
