"""What a setting may hold: values checked against a field's type annotation, and that type in words.

Checking is strict on purpose. A quoted "123" stays text, `true` is not the number 1, 3.0 is not a whole number: what
a run writes to `config.yaml` reads back as exactly what it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

__all__ = [
    "ConfigError",
    "PhloemError",
    "Stopped",
    "a_few",
    "at_least",
    "check_fields",
    "coerce",
    "home_expanded",
    "in_words",
    "is_optional",
    "positive",
    "require",
    "takes_text",
    "type_hints",
]


class PhloemError(Exception):
    """A failure that the message alone explains; the command line prints it without a traceback."""


class ConfigError(PhloemError, ValueError):
    """A setting that cannot be honoured; the message names the field and the remedy."""


class Stopped(KeyboardInterrupt):
    """A run was asked to stop by a signal, and did; the message says how to go on."""

    def __init__(self, signal: int, message: str = "") -> None:
        super().__init__(message)
        self.signal = signal


@cache
def type_hints(owner: type) -> dict[str, Any]:
    """The resolved annotations of a dataclass, by field name."""
    return get_type_hints(owner)


def is_optional(kind: Any) -> bool:
    """Whether `kind` admits None (null in a file)."""
    return get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind)


def _without_none(kind: Any) -> Any:
    (rest,) = (part for part in get_args(kind) if part is not NoneType)
    return rest


def takes_text(kind: Any) -> bool:
    """Whether a word on the command line is the value itself, not YAML to be read."""
    if is_optional(kind):
        kind = _without_none(kind)
    return kind is str or (get_origin(kind) is Literal and isinstance(get_args(kind)[0], str))


def coerce(name: str, value: Any, kind: Any) -> Any:
    """`value` as the type `kind`; lists become tuples, whole numbers become floats, paths become text.

    Raises:
        ConfigError: the value is of another type; the message names the field and what it takes.
    """
    converted = _convert(value, kind)
    if converted is _MISFIT:
        raise ConfigError(f"{name} is {value!r}; it takes {in_words(kind)}")
    return converted


_MISFIT: Any = object()


def _convert(value: Any, kind: Any) -> Any:
    if is_optional(kind):
        return None if value is None else _convert(value, _without_none(kind))
    if get_origin(kind) is tuple:
        return _convert_items(value, get_args(kind))
    if is_dataclass(kind) and isinstance(value, dict):
        return _convert_record(value, kind)
    if get_origin(kind) is Literal:
        fits = any(value == choice and type(value) is type(choice) for choice in get_args(kind))
    elif get_origin(kind) is dict:
        fits = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else _MISFIT
    elif kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    else:
        fits = isinstance(value, cast(type, kind)) and not (kind is int and isinstance(value, bool))
    return value if fits else _MISFIT


def _convert_record(value: dict[Any, Any], kind: Any) -> Any:
    """A mapping as the dataclass whose fields it names; values are judged where the object is made."""
    needed = {part.name for part in fields(kind) if part.default is MISSING}
    known = {part.name for part in fields(kind)}
    return kind(**value) if needed <= set(value) <= known else _MISFIT


def _convert_items(value: Any, kinds: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        return _MISFIT
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        return _MISFIT
    items = tuple(_convert(item, kind) for item, kind in zip(value, kinds, strict=True))
    return _MISFIT if any(item is _MISFIT for item in items) else items


def check_fields(section: Any, owner: str) -> None:
    """Holds every field to its annotation, so that Python, files and the command line accept the same values."""
    hints = type_hints(type(section))
    for part in fields(section):
        value, kind = getattr(section, part.name), hints[part.name]
        name = _dotted(owner, part.name)
        if isinstance(kind, type) and is_dataclass(kind):
            require(isinstance(value, kind), f"{name} is {value!r}; it takes a {kind.__name__}")
        else:
            object.__setattr__(section, part.name, coerce(name, value, kind))


def require(ok: bool, message: str) -> None:
    """Raises ConfigError with the message unless `ok`."""
    if not ok:
        raise ConfigError(message)


def at_least(section: Any, owner: str, **bounds: float) -> None:
    """Holds fields of a section to their least values (`steps=1`); None means off."""
    for name, least in bounds.items():
        value = getattr(section, name)
        require(value is None or value >= least, f"{_dotted(owner, name)} is {value}; it must be at least {least}")


def positive(section: Any, owner: str, *names: str) -> None:
    """Holds fields of a section to values above 0; None means off."""
    for name in names:
        value = getattr(section, name)
        or_null = " or null" if is_optional(type_hints(type(section))[name]) else ""
        require(value is None or value > 0, f"{_dotted(owner, name)} is {value}; it must be positive{or_null}")


def home_expanded(section: Any, *names: str) -> None:
    """Writes out the home folder in fields that hold a path (`~/runs/mine`); None means off."""
    for name in names:
        if (value := getattr(section, name)) is not None:
            object.__setattr__(section, name, os.path.expanduser(value))


def _dotted(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name


def a_few(items: Sequence[Any], most: int) -> str:
    """The first `most` items, and the number of the others: `a, b and 7 more`."""
    more = len(items) - most
    return ", ".join(map(str, items[:most])) + (f" and {more} more" if more > 0 else "")


_WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    bool: ("true or false", "true or false values"),
}


def in_words(kind: Any) -> str:
    """The type as a reader meets it: `a whole number or null`, `one of dense, paths`, `a list of 2 numbers`."""
    if is_optional(kind):
        return f"{in_words(_without_none(kind))} or null"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        first, *rest = get_args(kind)
        if get_origin(first) is Literal:
            return f"a list of any of {', '.join(map(str, get_args(first)))}"
        if is_dataclass(first):
            return f"a list of mappings with the keys {', '.join(part.name for part in fields(first))}"
        return f"a list of {'' if rest == [Ellipsis] else f'{len(rest) + 1} '}{_WORDS[first][1]}"
    return "a mapping" if get_origin(kind) is dict else _WORDS[kind][0]
