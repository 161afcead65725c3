"""Settings that were changed and do nothing beside the others; a run says so at its start."""

from __future__ import annotations

from collections.abc import Iterator

from phloem.config import TrainConfig
from phloem.presets import Rule
from phloem.settings import flat, settings

__all__ = ["idle_beside_others", "idle_without_task"]


def idle_without_task(config: TrainConfig) -> tuple[str, ...]:
    """What the settings say of a built-in task while the task comes from Python."""
    fields = ("name", "args", "train_size", "held_out_size", "opening", "format_weight")
    now = flat(config)
    changed = [name for name in (f"task.{field}" for field in fields) if now[name] != settings()[name].default]
    return (f"given from Python, so these settings do nothing: {', '.join(changed)}",) if changed else ()


def idle_beside_others(config: TrainConfig, rule: Rule) -> tuple[str, ...]:
    """One sentence per reason, naming the settings."""
    return tuple(f"{', '.join(names)} set, and idle: {why}" for names, why in _idle(config, rule) if names)


def _idle(config: TrainConfig, rule: Rule) -> Iterator[tuple[list[str], str]]:
    now = flat(config)

    def changed(*names: str) -> list[str]:
        return [name for name in names if now[name] != settings()[name].default]

    if not config.model.lora.rank:
        names = changed("model.lora.alpha", "model.lora.dropout", "model.lora.target_modules")
        yield names, "model.lora.rank is 0, so there are no adapters"
    if config.sample.answers == 1:
        yield changed("sample.fork_at"), "sample.answers is 1, so nothing forks"
    if rule.scale == "none":
        yield changed("credit.ddof", "credit.eps"), f"the scale of {config.credit.preset} is none"
    if rule.beta == 0 and not config.credit.entropy:
        yield changed("credit.kl_share"), "credit.beta is 0, so there is no KL term"
    if not config.cold_start.steps:
        yield changed("cold_start.batch_size", "cold_start.lr"), "cold_start.steps is 0"
    if config.evaluation.prompts == 0:
        yield changed("evaluation.samples", "evaluation.prompts_between", "evaluation.shown"), "evaluation.prompts is 0"
    elif not config.evaluation.every:
        yield changed("evaluation.prompts_between"), "evaluation.every is 0"
    if not config.run.trackers:
        yield changed("run.project"), "run.trackers is empty"
