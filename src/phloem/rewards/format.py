"""The format `<think>...</think><answer>...</answer>`: its reward, and the answer inside it.

Tags are matched as plain text, once each and in order; bodies may span lines, with either line ending. White space may
stand before, between and after the two elements, nothing else may.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from phloem.rewards.verdict import Verdict

__all__ = ["Format", "Parsed", "extract_answer", "parse_format"]

_TAG = re.compile(r"</?(?:think|answer)>")
_WANTED = ("<think>", "</think>", "<answer>", "</answer>")


class Parsed(NamedTuple):
    """The two bodies of a well-formed completion, stripped of surrounding white space."""

    thought: str
    answer: str


def parse_format(completion: str, *, prefilled: bool = False) -> Parsed | None:
    """The bodies of a well-formed completion, or None.

    `prefilled`: the prompt already ends with `<think>`, so the completion starts inside it; an opening tag of its own
    is then one too many. Nested, repeated and unclosed tags are None, and so is text before, between or after.
    """
    text = f"<think>{completion}" if prefilled else completion
    tags = list(_TAG.finditer(text))
    if tuple(tag.group() for tag in tags) != _WANTED:
        return None
    open_think, close_think, open_answer, close_answer = tags
    outside = (
        text[: open_think.start()],
        text[close_think.end() : open_answer.start()],
        text[close_answer.end() :],
    )
    if any(part.strip() for part in outside):
        return None
    return Parsed(
        text[open_think.end() : close_think.start()].strip(), text[open_answer.end() : close_answer.start()].strip()
    )


def extract_answer(completion: str) -> str | None:
    """The text a completion offers as its answer, stripped; None where it offers none.

    - Thinking does not count: only what follows the last `</think>` is looked at, and a thought that is still open has
      no answer.
    - There, the last complete `<answer>` element; an opening tag that is never closed is no answer.
    - Without answer tags, all of it.
    """
    _, _, rest = completion.rpartition("</think>")
    if "<think>" in rest:
        return None
    if "<answer>" not in rest and "</answer>" not in rest:
        return rest.strip()
    end = rest.rfind("</answer>")
    start = rest.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    body, _, _ = rest[start + len("<answer>") :].partition("</answer>")
    return body.strip()


@dataclass(frozen=True)
class Format:
    """Reward 1 for a well-formed completion (see `parse_format`), else 0. The gold answer is not looked at."""

    prefilled: bool = False

    def __call__(self, completion: str, answer: Any = None, row: Mapping[str, Any] | None = None) -> Verdict:
        parsed = parse_format(completion, prefilled=self.prefilled)
        if parsed is None:
            return Verdict.wrong(detail="not a single <think> element followed by a single <answer> element")
        return Verdict.right(parsed.answer)
