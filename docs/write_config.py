"""Writes docs/config.md from the settings themselves: `python docs/write_config.py`. A test compares the two."""

from __future__ import annotations

from pathlib import Path

from phloem.config import EvaluateConfig, TrainConfig
from phloem.kinds import in_words
from phloem.settings import sections, settings

HEAD = """# Settings

Every field of a run, by its dotted name. In a YAML file names nest (`sample: {thoughts: 8}`) or stay dotted
(`sample.thoughts: 8`); on the command line they are options (`--sample.thoughts 8`); in Python they are fields of
frozen dataclasses (`TrainConfig(sample=SampleConfig(thoughts=8))`). An option beats every file, a later file beats an
earlier one, a file beats the default. An unknown name, or a value of another type, is an error.

`docs/write_config.py` writes this page.
"""

EVALUATE = """# Settings of an evaluation

Of `phloem evaluate` and `EvaluateConfig`; given in the same ways. [What they mean together](evaluate.md).
"""


def page() -> str:
    """The text of docs/config.md."""
    return "\n".join([HEAD, *_tables(TrainConfig), EVALUATE, *_tables(EvaluateConfig)])


def _tables(root: type) -> list[str]:
    """A heading, the documentation and a table of each section that has settings of its own."""
    parts: list[str] = []
    for prefix, owner in sections(root).items():
        own = [setting for setting in settings(root).values() if setting.name.rpartition(".")[0] == prefix]
        if own and prefix:
            lines = (owner.__doc__ or "").split("\n\n")
            parts.append(f"## {prefix}\n\n" + "\n\n".join(" ".join(line.split()) for line in lines) + "\n")
        if own:
            rows = ["| setting | takes | default | |", "|---|---|---|---|"]
            for setting in own:
                doc = " ".join(setting.doc.split()).replace("|", "\\|")
                rows.append(f"| `{setting.name}` | {in_words(setting.kind)} | `{_shown(setting.default)}` | {doc} |")
            parts.append("\n".join(rows) + "\n")
    return parts


def _shown(default: object) -> str:
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    return str(list(default) if isinstance(default, tuple) else default)


if __name__ == "__main__":
    Path(__file__).with_name("config.md").write_text(page(), encoding="utf-8")
