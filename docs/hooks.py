"""mkdocs: a fence says what becomes of its code (`run`, `show`); Markdown's reader takes the language alone."""

from __future__ import annotations

import re
from typing import Any

MARKED = re.compile(r"^```(\w+) (?:run|show)$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with plain fences."""
    return MARKED.sub(r"```\1", markdown)
