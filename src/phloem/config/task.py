"""What is trained on: prompts, answers, rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from phloem.kinds import at_least, check_fields, require

__all__ = ["HELD_OUT", "TaskConfig"]

HELD_OUT = 256
"""Examples kept for evaluation where nobody says how many."""


@dataclass(frozen=True)
class TaskConfig:
    """Where prompts, answers and rewards come from."""

    name: str = "sums"
    """A built-in task (`phloem tasks` lists them), `reasoning-gym:GENERATOR`, or `data` for a file or hub id."""
    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the task's constructor, for example `{digits: 2}`."""
    train_size: int | None = None
    """Use this many training examples; null: the task's default, or all of the data."""
    held_out_size: int | None = None
    """How many examples are kept for evaluation; null: 256, of your own data at most a tenth."""
    system_prompt: str | None = None
    """Put before every prompt as a message of the system."""
    chat_template: bool = True
    """Wrap prompts in the tokenizer's chat template; off for base models."""
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    """Further variables of the chat template, for example `{enable_thinking: false}`."""
    opening: str = ""
    """What the chat template already writes of a completion, for example `<think>`: rewards see it in front of what the
    policy wrote, and demonstrations are given without it."""
    max_prompt_tokens: int | None = None
    """Longer prompts are too long, template included; null: those that leave no room for a completion."""
    long_prompts: Literal["error", "drop"] = "error"
    """Prompts that are too long: an error that names one, or left out, with their number said."""
    format_weight: float = 0.0
    """Weight of the format reward added to the task's reward."""

    def __post_init__(self) -> None:
        check_fields(self, "task")
        at_least(self, "task", train_size=1, held_out_size=1, max_prompt_tokens=1)
        require(
            self.chat_template or not self.chat_template_args,
            "task.chat_template_args is set and task.chat_template is false: drop one of the two",
        )
