"""The words that follow a command, read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phloem.kinds import ConfigError

__all__ = ["Line", "read_line", "read_settings"]


@dataclass
class Line:
    """Words that stand alone, `--option value` pairs in their order, and `--flag`s."""

    words: list[str] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)

    def option(self, name: str) -> str | None:
        """The value of an option, the last one given; None: it was not given."""
        return dict(self.pairs).get(name)

    def take(self, name: str) -> list[str]:
        """Every value given to an option, which leaves the line."""
        taken = [value for known, value in self.pairs if known == name]
        self.pairs = [pair for pair in self.pairs if pair[0] != name]
        return taken


def read_line(
    command: str, words: Sequence[str], options: Sequence[str] | None = (), flags: Sequence[str] = ()
) -> Line:
    """The line of a command that takes these options, with a value each, and these flags. Options None: any.

    Raises:
        ConfigError: an option that the command does not take, or one without a value.
    """
    line, rest = Line(), list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("-"):
            line.words.append(word)
        elif name in flags and word == f"--{name}":
            line.flags.add(name)
        elif not word.startswith("--") or (options is not None and name not in options):
            raise ConfigError(f"phloem {command} takes no {word}")
        else:
            value = value if equals else rest.pop(0) if rest else None
            if value is None or (value == "" and options is not None):  # a setting may be empty text
                raise ConfigError(f"--{name} has no value; write --{name} VALUE")
            line.pairs.append((name, value))
    return line


def read_settings(command: str, words: Sequence[str], flags: Sequence[str] = ()) -> Line:
    """The line of a command whose options are `--config FILE` and settings, which are judged later by name.

    Raises:
        ConfigError: a word that stands alone, or an option without a value.
    """
    line = read_line(command, words, None, flags)
    for word in line.words:
        raise ConfigError(f"{word!r} stands alone; settings are given as --name value")
    return line
