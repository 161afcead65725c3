"""Which names of gold tests are the completion's to define. The tests are only parsed, and each once."""

from __future__ import annotations

import ast
import builtins
import functools
import sys
from typing import NamedTuple

__all__ = ["Names", "names_of"]

_BUILTINS = frozenset(dir(builtins))


class Names(NamedTuple):
    names: tuple[str, ...]
    """The completion's."""
    modules: tuple[str, ...]
    """Standard modules that the tests use without an import (`math.isclose`)."""
    setup_calls: bool
    """Whether the set-up code uses any of `names`."""


@functools.lru_cache(maxsize=4096)
def names_of(tests: tuple[str, ...], setup: str, prompt: str, entry_point: str) -> Names:
    """The names that tests use and nobody but the completion can define.

    Built-in names stay the interpreter's, so a completion that defines its own `set` or `sorted` changes no test. If
    nothing else is left, the one built-in that the tests call is what the completion redefines
    (`assert sum(10, 15) == 6`).

    Raises SyntaxError, ValueError or RecursionError: tests that are not Python.
    """
    of_setup = _Uses(setup)
    used = _Uses("\n".join((setup, *tests)))
    bound = used.bound | _Uses(prompt).bound
    free = used.loaded - bound - {entry_point}
    modules = {name for name in free - used.called if name in sys.stdlib_module_names}
    names = (free - modules - _BUILTINS) | ({entry_point} - {""})
    redefined = (used.called & _BUILTINS) - bound
    if not names and len(redefined) == 1:
        names = redefined
    return Names(tuple(sorted(names)), tuple(sorted(modules)), bool(names & of_setup.loaded))


class _Uses:
    """The names a program reads, binds (anywhere) and calls."""

    def __init__(self, source: str) -> None:
        self.loaded: set[str] = set()
        self.bound: set[str] = set()
        self.called: set[str] = set()
        for node in ast.walk(_parse(source)):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    self.loaded.add(name)
                case ast.Name(id=name) | ast.arg(arg=name):
                    self.bound.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    self.bound.add(name)
                case ast.alias(name=name, asname=given):
                    self.bound.add((given or name).split(".")[0])
                case ast.ExceptHandler(name=str(name)):
                    self.bound.add(name)
                case ast.Call(func=ast.Name(id=name)):
                    self.called.add(name)


def _parse(source: str) -> ast.AST:
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.parse(f"{source.rstrip()}\n    pass\n")  # a prompt that stops at `def f(x):`
