"""Going on with a run: the settings of its folder, and which of them may change on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from phloem.config import TrainConfig
from phloem.kinds import ConfigError
from phloem.settings import flat, load_config, settings
from phloem.train.checkpoint import Checkpoints

__all__ = ["CHANGEABLE", "require_same_run", "settings_of_run"]

CHANGEABLE = (
    "optim.steps",
    "optim.pack_tokens",
    "sample.max_rows",
    "model.attention",
    "model.gradient_checkpointing",
    "evaluation.shown",
    "run.folder",
    "run.view",
    "run.trackers",
    "run.project",
    "run.save_rollouts",
    "run.save_model",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "run.threads",
    "run.time_rows",
)
"""Settings that leave what is learnt as it was, up to rounding: how long, how fast, what is shown, timed and kept.

Alarms may change too, all of `alarms`.
"""


def settings_of_run(run: Path) -> TrainConfig:
    """The settings that a run folder was made with, its own path as `run.folder`.

    Raises:
        ConfigError: not a run folder.
    """
    if not (run / "config.yaml").exists():
        raise ConfigError(f"{run} is not a run folder: it has no config.yaml. Name the folder of the run to go on with")
    config = load_config(run / "config.yaml")
    return replace(config, run=replace(config.run, folder=str(run)))


def require_same_run(config: TrainConfig) -> None:
    """Raises ConfigError: settings other than `CHANGEABLE` differ from those of the run in `config.run.folder`, by
    name.

    What counts is its newest checkpoint's copy of them, so that a config.yaml changed by hand does not go unseen.
    """
    old = settings_of_run(Path(config.run.folder or ""))
    kept = Checkpoints(Path(config.run.folder or ""), 0).settings
    was, now = flat(old if kept is None else load_config(kept)), flat(config)
    odd = [n for n in settings() if was[n] != now[n] and n not in CHANGEABLE and not n.startswith("alarms.")]
    if odd:
        changes = ", ".join(f"{name} ({was[name]!r} there, {now[name]!r} now)" for name in odd)
        raise ConfigError(
            f"a run that goes on is the same run, and these settings are not: {changes}. Leave them out, or start a "
            f"new run from its model (model.path {Path(str(old.run.folder)) / 'model'})"
        )
