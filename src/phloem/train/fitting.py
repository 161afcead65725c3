"""Prompts that leave no room for a completion: an error that names one, or left out and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from phloem.kinds import ConfigError, a_few
from phloem.tasks.enough import require_enough
from phloem.tasks.task import Example, ExampleTask, Task
from phloem.train.policy import Policy

__all__ = ["fit_prompts"]


def fit_prompts(policy: Policy, task: Task, say: Callable[[str], None]) -> Task:
    """The task with prompts that fit: of at most `task.max_prompt_tokens`, and beside a completion in the context.

    `task.long_prompts` says what becomes of the others; with `drop` their number is said.

    Raises:
        ConfigError: a prompt is too long and `task.long_prompts` is error, too few are left, or the task cannot drop.
    """
    config = policy.config
    limit, why = _limit(policy)
    if limit is None:
        return task
    train, held_out = list(task.train), list(task.held_out)
    looked_at = [*train, *held_out] if config.task.long_prompts == "drop" else [*train, *_evaluated(policy, held_out)]
    long = [(e, n) for e in looked_at if (n := len(policy.prompt_ids(e))) > limit]
    if not long:
        return task
    name, length = long[0][0].id, long[0][1]
    if config.task.long_prompts == "error":
        raise ConfigError(
            f"{len(long)} of {len(looked_at)} prompts are too long; that of example {name} has {length} tokens, {why}. "
            "Shorten them, set task.long_prompts to drop, or lower sample.thought_tokens and sample.answer_tokens"
        )
    if not isinstance(task, ExampleTask):
        raise ConfigError(
            f"{len(long)} prompts are too long, and task.long_prompts drop works on an ExampleTask: leave out {name}"
        )
    shown = a_few([example.id for example, _ in long], 5)
    say(f"{task.name}: {len(long)} of {len(looked_at)} prompts have more than {limit} tokens and are left out: {shown}")
    gone = {id(example) for example, _ in long}  # two files may call their examples the same
    kept = replace(
        task,
        train=[example for example in train if id(example) not in gone],
        held_out=[example for example in held_out if id(example) not in gone],
    )
    require_enough(kept, config)
    return kept


def _evaluated(policy: Policy, held_out: list[Example]) -> list[Example]:
    return held_out[: policy.config.evaluation.prompts]


def _limit(policy: Policy) -> tuple[int | None, str]:
    """The longest prompt in tokens, and what sets it."""
    config, longest = policy.config, policy.config.task.max_prompt_tokens
    context = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    budget = config.sample.max_completion_tokens
    if context is not None and (longest is None or context - budget < longest):
        return context - budget, f"which with {budget} for the completion is over the model's context of {context}"
    return longest, f"over task.max_prompt_tokens {longest}"
