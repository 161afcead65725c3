"""How a program is judged: what a data row's answer holds for `phloem.rewards.code`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["CodeTests"]


@dataclass(frozen=True)
class CodeTests:
    """How a completion's code is judged: exactly one of `tests`, `check` and `stdin_stdout`.

    tests: statements, one test each, that call the completion's functions; `setup` runs before them.
    check: code that defines `check(candidate)`; it counts as one test. It needs `entry_point`.
    stdin_stdout: pairs of standard input and expected standard output, compared without white space at the ends of
        lines and without empty lines at the end.
    entry_point: the function under test. With `tests` it may be empty: every name that the tests use and that neither
        they nor Python define is then the completion's.
    prompt: code that the completion continues. Tests see its definitions, not what a completion puts in their place.

    Raises ValueError: none or several kinds, a field of the wrong type, a field that this kind of test does not use.
    """

    tests: tuple[str, ...] = ()
    setup: str = ""
    check: str = ""
    entry_point: str = ""
    prompt: str = ""
    stdin_stdout: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tests", _texts(self.tests, "tests"))
        object.__setattr__(self, "stdin_stdout", tuple(_pair(pair) for pair in self.stdin_stdout))
        for name in ("setup", "check", "entry_point", "prompt"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is {type(getattr(self, name)).__name__}, not a text")
        kinds = [name for name in ("tests", "check", "stdin_stdout") if getattr(self, name)]
        if len(kinds) != 1:
            raise ValueError(f"tests are of one kind: tests, check or stdin_stdout; here: {', '.join(kinds) or 'none'}")
        if (self.check or self.prompt) and not self.entry_point:
            raise ValueError(f"{'check' if self.check else 'prompt'} needs entry_point, the name of the function")
        if self.entry_point and not self.entry_point.isidentifier():
            raise ValueError(f"entry_point {self.entry_point!r} is not a name")
        unused = {"tests": (), "check": ("setup",), "stdin_stdout": ("setup", "entry_point", "prompt")}[kinds[0]]
        for name in unused:
            if getattr(self, name):
                raise ValueError(f"{kinds[0]} makes no use of {name}; leave it out")

    @classmethod
    def read(cls, answer: CodeTests | Mapping[str, Any]) -> CodeTests:
        """From a data row's answer. Raises ValueError, also for an unknown key."""
        if isinstance(answer, CodeTests):
            return answer
        if not isinstance(answer, Mapping):
            raise ValueError(f"tests are a mapping or CodeTests, not {type(answer).__name__}")
        known = [field.name for field in fields(cls)]
        unknown = [key for key in answer if key not in known]
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r}; the keys are {', '.join(known)}")
        return cls(**answer)


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{name} is {type(value).__name__}, not a list of texts")
    items = tuple(value)
    if not all(isinstance(item, str) and item.strip() for item in items):
        raise ValueError(f"{name} holds an empty text or something that is not a text")
    return items


def _pair(value: Any) -> tuple[str, str]:
    parts = [value.get("stdin"), value.get("stdout")] if isinstance(value, Mapping) else value
    match parts:
        case [str(stdin), str(stdout)]:
            return stdin, stdout
    raise ValueError('stdin_stdout holds {"stdin": text, "stdout": text} or pairs of texts')
