"""Reward functions of your own: `file.py:fn`, `package.module:fn` or `package.module.fn`.

A function is called by the names of its parameters:

- `completion`, `answer`, `row`: one completion at a time;
- `completions`, `answers`, `rows`: the whole batch, returning one value per completion.

It takes any of the three of one kind, and `**kwargs` takes the rest. `completion` is the text the policy wrote, never
the prompt with it; `answer` and `row` are the gold answer and the data row. Either kind may be `async`: single calls
are then awaited together. A value is a finite number, None (not scored) or a `Verdict`. A function that raises faults
the completions of that call, unscored and counted; any other value stops the run with an error that names it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from phloem.rewards.compose import attempt, outcomes_to_verdicts, own_copy
from phloem.rewards.surroundings import surroundings_kept
from phloem.rewards.verdict import RewardError, Verdict

__all__ = ["UserReward", "load"]

Row = Mapping[str, Any]

SINGLE = ("completion", "answer", "row")
BATCH = ("completions", "answers", "rows")


def load(spec: str) -> UserReward:
    """The function a spec names. Raises RewardError: no such file, module or function; unusable parameters."""
    return UserReward(_find(spec), name=spec)


def _find(spec: str) -> Callable[..., Any]:
    place, colon, name = spec.rpartition(":")
    if not colon:
        place, _, name = spec.rpartition(".")
    if not place or not name:
        raise RewardError(f"reward {spec!r}: write file.py:function, module:function or module.function")
    module = _from_file(Path(place).expanduser(), spec) if place.endswith(".py") else _from_module(place, spec)
    function = getattr(module, name, None)
    if not callable(function):
        defined = inspect.getmembers(module, lambda value: getattr(value, "__module__", "") == module.__name__)
        functions = [key for key, value in defined if inspect.isfunction(value)]
        raise RewardError(f"reward {spec!r}: no function {name!r} there; found {', '.join(functions) or 'none'}")
    return function


def _from_file(path: Path, spec: str) -> ModuleType:
    if not path.is_file():
        raise RewardError(f"reward {spec!r}: no file {path} (looked in {Path.cwd()})")
    name = f"phloem_user_reward_{path.stem}_{abs(hash(str(path.resolve())))}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise RewardError(f"reward {spec!r}: {path} is not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses and pickling look their module up there
    try:
        with surroundings_kept():
            found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RewardError(f"reward {spec!r}: importing {path} raised {type(error).__name__}: {error}") from error
    return module


def _from_module(name: str, spec: str) -> ModuleType:
    try:
        with surroundings_kept():
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise RewardError(f"reward {spec!r}: importing {name} raised {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class UserReward:
    """A user's function as a `BatchReward`; see the module for how it is called.

    Raises RewardError: parameters it cannot be given; a wrong number of values from a batch function; a value that is
    not a finite number, None or a Verdict.
    """

    function: Callable[..., Any]
    name: str = ""
    _takes: tuple[str, ...] = field(init=False, repr=False)
    _batch: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or getattr(self.function, "__qualname__", repr(self.function)))
        takes, batch = _signature(self.function, self.name)
        object.__setattr__(self, "_takes", takes)
        object.__setattr__(self, "_batch", batch)

    def score_batch(self, completions: Sequence[str], answers: Sequence[Any], rows: Sequence[Row]) -> list[Verdict]:
        if not completions:
            return []
        columns = (completions, *([own_copy(value) for value in column] for column in (answers, rows)))
        if self._batch:
            outcomes = self._call_batch(len(completions), dict(zip(BATCH, map(list, columns), strict=True)))
        else:
            calls: list[dict[str, Any]] = [dict(zip(SINGLE, each, strict=True)) for each in zip(*columns, strict=True)]
            outcomes = self._call_each(calls)
        return outcomes_to_verdicts(outcomes, self.name)

    def _call_batch(self, size: int, given: dict[str, Any]) -> list[Any]:
        value = attempt(lambda: _finish(self.function(**self._pick(given))))
        if isinstance(value, BaseException):
            return [value] * size
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
            raise RewardError(f"{self.name} takes a batch and must return a list; it returned {type(value).__name__}")
        if len(value) != size:
            raise RewardError(f"{self.name} returned {len(value)} rewards for {size} completions; return one for each")
        return list(value)

    def _call_each(self, calls: list[dict[str, Any]]) -> list[Any]:
        values = [attempt(lambda given=given: self.function(**self._pick(given))) for given in calls]
        if any(inspect.isawaitable(value) for value in values):
            return _in_event_loop(_gather(values))
        return values

    def _pick(self, given: dict[str, Any]) -> dict[str, Any]:
        return {name: given[name] for name in self._takes}


def _signature(function: Callable[..., Any], name: str) -> tuple[tuple[str, ...], bool]:
    """Which of the names a function takes, and whether it takes a batch."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise RewardError(f"{name}: its parameters cannot be read ({error}); wrap it in a plain function") from None
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    batch = any(parameter in BATCH for parameter in named)
    names = BATCH if batch else SINGLE
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    unknown = [parameter for parameter in required if parameter not in names]
    if unknown or not (everything or any(parameter in names for parameter in named)):
        raise RewardError(
            f"{name}({', '.join(p.name for p in parameters)}): parameters are given by name, any of "
            f"{', '.join(SINGLE)} or, for a whole batch, of {', '.join(BATCH)}"
        )
    return tuple(parameter for parameter in names if everything or parameter in named), batch


def _finish(value: Any) -> Any:
    return _in_event_loop(_await(value)) if inspect.isawaitable(value) else value


async def _await(value: Any) -> Any:
    return await value


async def _gather(values: list[Any]) -> list[Any]:
    async def one(value: Any) -> Any:
        try:
            return await value if inspect.isawaitable(value) else value
        except (Exception, SystemExit) as error:
            return error

    return await asyncio.gather(*map(one, values))


def _in_event_loop(coroutine: Any) -> Any:
    """Runs a coroutine to its end, also where a loop is already running (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
