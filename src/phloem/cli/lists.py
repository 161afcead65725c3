"""Commands that list what there is to choose from."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from phloem.cli.line import read_line
from phloem.kinds import ConfigError
from phloem.presets import PRESETS
from phloem.settings import nearest

__all__ = ["presets", "tasks"]


def presets(words: Sequence[str]) -> None:
    """List the named rules of credit; `phloem presets NAME` says more about one."""
    names = read_line("presets", words).words
    if not names:
        row = "{:<15} {:<8} {:<14} {:<6} {:<6} {:<15} {}".format
        print(row("preset", "unit", "baseline", "scale", "share", "normaliser", "clip"))
        for preset in PRESETS.values():
            rule = preset.rule
            clip = "none" if rule.clip_low is None else f"{rule.clip_low:g} / {rule.clip_high:g}"
            print(row(preset.name, rule.unit, rule.baseline, rule.scale, rule.share, rule.normaliser, clip))
    for name in names:
        if name not in PRESETS:
            raise ConfigError(f"{name} is not a preset; did you mean {nearest(name, list(PRESETS))}?")
        preset = PRESETS[name]
        print(f"{preset.name} ({preset.paper})\n  {preset.equation}")
        print(textwrap.fill(preset.note, 100, initial_indent="  ", subsequent_indent="  "))


def tasks(words: Sequence[str]) -> None:
    """List the built-in tasks, for `--task.name`."""
    for word in read_line("tasks", words).words:
        raise ConfigError(f"phloem tasks takes no {word}")
    from phloem.tasks import names

    for name, line in names().items():
        print(f"{name:<24} {line}")
