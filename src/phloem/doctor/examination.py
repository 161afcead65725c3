"""The examination: task, reward, rule and prompts of a configuration, in this order."""

from __future__ import annotations

from collections.abc import Iterator

from phloem import presets, tasks
from phloem.config import TrainConfig
from phloem.doctor.data import of_data
from phloem.doctor.findings import Finding, Report, fail, ok, warn
from phloem.doctor.lengths import of_lengths
from phloem.doctor.prompts import of_prompts, rendered
from phloem.doctor.reward import of_golds, of_reward
from phloem.kinds import ConfigError, PhloemError
from phloem.models import load_tokenizer
from phloem.presets import Rule
from phloem.tasks.enough import require_enough
from phloem.tasks.task import Task

__all__ = ["examine"]


def examine(config: TrainConfig, task: Task | None = None) -> Report:
    """Looks at everything a run would use but the model's weights, and says what it found.

    Args:
        config: the settings of the run.
        task: prompts, answers and rewards; None: the one that `config.task` names.

    Raises:
        ConfigError: settings that cannot be honoured. Data, rewards and tokenizers that cannot be used are findings.
    """
    rule = presets.from_config(config.credit, config.sample.max_completion_tokens)
    findings: list[Finding] = []
    try:
        task = tasks.get(config.task, config.run.seed) if task is None else task
    except ConfigError:
        raise
    except PhloemError as error:
        findings.append(fail("data", str(error)))
    if task is not None:
        require_enough(task, config)
        findings += _answers("data", of_data(task))
        findings += _answers("golds", of_golds(task))
        findings += _answers("reward", of_reward(task))
    findings += of_rule(rule, config)
    prompt, found = _of_prompts(config, task)
    name = config.task.name if task is None else task.name
    return Report(f"{name} with {config.model.path}", (*findings, *found), prompt)


def _answers(topic: str, findings: Iterator[Finding]) -> list[Finding]:
    """The findings up to what stops the looking, which is one itself."""
    found: list[Finding] = []
    try:
        found.extend(findings)
    except PhloemError as error:
        found.append(fail(topic, str(error)))
    return found


def of_rule(rule: Rule, config: TrainConfig) -> Iterator[Finding]:
    """The rule of credit with every field resolved, and the shape of a group."""
    clip = "no clipping" if rule.clip_low is None else f"clip {rule.clip_low:g} / {rule.clip_high:g}"
    yield ok(
        "credit",
        f"{config.credit.preset}: unit {rule.unit}, baseline {rule.baseline}, scale {rule.scale}, share {rule.share}, "
        f"normaliser {rule.normaliser}, {clip}, beta {rule.beta:g}",
    )
    sample = config.sample
    if sample.forks:
        shape = f"{sample.shape} segments, level by level, up to {sample.max_completion_tokens} tokens a rollout"
    elif sample.answers == 1:
        shape = f"{sample.thoughts} rollouts of up to {sample.max_completion_tokens} tokens"
    else:
        shape = (
            f"{sample.thoughts} thoughts of up to {sample.thought_tokens} tokens, closed by {sample.fork_at!r}, "
            f"x {sample.answers} answers of up to {sample.answer_tokens}"
        )
    rollouts = sample.group_size * config.optim.prompts_per_step
    yield ok("groups", f"{shape}; {config.optim.prompts_per_step} prompts and up to {rollouts} rollouts a step")
    if sample.top_p < 1 or sample.top_k:
        yield warn(
            "groups",
            f"top_p {sample.top_p:g} and top_k {sample.top_k} sample from a narrower policy than the trained one",
            "set sample.top_p to 1 and sample.top_k to 0, unless that is meant",
        )


def _of_prompts(config: TrainConfig, task: Task | None) -> tuple[str | None, list[Finding]]:
    """The first prompt as the model reads it, and what is to be said of the tokenizer, prompts and lengths."""
    try:
        tokenizer, declared = load_tokenizer(config.model)
        prompt = None if task is None else rendered(tokenizer, task.train[0], config.task)
    except PhloemError as error:
        return None, [fail("prompts", str(error))]
    found = _answers("prompts", of_prompts(tokenizer, declared, task, config))
    if task is not None:
        found += _answers("lengths", of_lengths(tokenizer, declared, task, config))
    return prompt, found
