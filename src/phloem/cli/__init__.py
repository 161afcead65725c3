"""The `phloem` command: a function for each command, whose docstring is its help.

A command takes the words that follow its name. Nothing heavy is imported before one needs it.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence

from phloem import __version__
from phloem.cli.evaluations import compare, evaluate
from phloem.cli.lists import presets, tasks
from phloem.cli.runs import doctor, export, inspect, train
from phloem.cli.studies import study
from phloem.config import EvaluateConfig, TrainConfig
from phloem.kinds import ConfigError, PhloemError, Stopped, in_words
from phloem.settings import nearest, sections, settings

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": train,
    "evaluate": evaluate,
    "compare": compare,
    "doctor": doctor,
    "tasks": tasks,
    "presets": presets,
    "inspect": inspect,
    "export": export,
    "study": study,
}
_SETTINGS: dict[str, type] = {"train": TrainConfig, "evaluate": EvaluateConfig}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 done, 1 failed, 2 the request cannot be honoured.

    128 + n: signal n stopped a run; 130: interrupted.
    """
    name, *words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        if name in ("--help", "-h"):
            print(_overview())
        elif name == "--version":
            print(__version__)
        elif name not in COMMANDS:
            raise ConfigError(f"{name} is not a command; did you mean {nearest(name, list(COMMANDS))}?")
        elif "--help" in words or "-h" in words:
            print(_help(name))
        else:
            COMMANDS[name](words)
        sys.stdout.flush()
    except PhloemError as error:
        print(f"phloem: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Stopped as stopped:
        print(f"phloem: {stopped}", file=sys.stderr)
        return 128 + stopped.signal
    except KeyboardInterrupt:
        print("phloem: interrupted", file=sys.stderr)
        return 130
    return 0


def _overview() -> str:
    lines = [f"  {name:<9} {(command.__doc__ or '').splitlines()[0]}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: phloem COMMAND [OPTIONS]",
            "",
            "Reinforcement learning with verifiable rewards on prefix trees.",
            "",
            *lines,
            "",
            "  phloem COMMAND --help says more; phloem --version prints the version.",
        ]
    )


def _help(name: str) -> str:
    """The docstring of a command, and the settings that it takes."""
    says = textwrap.dedent(f"    {COMMANDS[name].__doc__}").strip()
    lines = [f"usage: phloem {name}{' [OPTIONS]' if name in _SETTINGS else ''}", "", says]
    return "\n".join([*lines, *(_settings_lines(_SETTINGS[name]) if name in _SETTINGS else ())])


def _settings_lines(root: type) -> Iterator[str]:
    """The settings of a configuration under the first line of their sections' docstrings."""
    for prefix, owner in sections(root).items():
        own = [setting for setting in settings(root).values() if setting.name.rpartition(".")[0] == prefix]
        if own:
            yield ""
        if own and prefix:
            yield f"{prefix}: {(owner.__doc__ or '').splitlines()[0]}"
        for setting in own:
            default = "null" if setting.default is None else setting.default
            yield f"  --{setting.name:<28} {in_words(setting.kind)} (default: {default})"
            yield from textwrap.wrap(setting.doc, 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
