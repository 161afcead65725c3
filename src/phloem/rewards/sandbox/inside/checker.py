"""The tests' side: runs gold tests against a candidate that lives in another sandbox.

The tests run here, in an interpreter the completion never enters. What they know of the completion is `Remote`
objects, which ask the candidate's process for every call and hold plain data as its results; comparing is done here.
"""

from __future__ import annotations

import builtins

from phloem.rewards.sandbox.inside.prompt import compile_prompt
from phloem.rewards.sandbox.inside.wire import MAX_REPLY_BYTES, Closed, WireError, decode, encode, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType
    from typing import Any, BinaryIO


class CandidateError(Exception):
    """An exception of a class that the completion defined."""


class GoldError(BaseException):
    """The tests cannot be run, whatever the completion."""


class Trouble(BaseException):
    """The completion did something no function call does: it left, or sent what is not plain data.

    Like SystemExit it is not an Exception, so that a test which expects "any exception" is not satisfied by it.
    """


class CannotTravel(Exception):
    """A value that tests pass to the completion is neither plain data nor the completion's own."""


class Link:
    """Requests to the candidate, one at a time.

    `calls` counts calls of its functions. `trouble` is the last Trouble: a test during which there was any has not
    passed, even if it caught it. `answered`: the candidate has given data, so what tests do now may be its doing.
    """

    def __init__(self, inward: BinaryIO, outward: BinaryIO) -> None:
        self.inward, self.outward = inward, outward
        self.calls = 0
        self.trouble = ""
        self.answered = False
        self.closed = False

    def wait_ready(self) -> None:
        receive(self.inward, MAX_REPLY_BYTES)

    def ask(self, request: str, *arguments: Any) -> Any:
        """The value of one request. Raises what the candidate raised, Trouble, or GoldError."""
        self.calls += request == "call"
        try:
            send(self.outward, encode((request, *arguments), _handle))
            reply = decode(receive(self.inward, MAX_REPLY_BYTES), lambda number: Remote(self, number))
            if type(reply) is not tuple or len(reply) not in (1, 2):
                raise WireError("neither a value nor an exception")
        except Closed:
            self.closed = True
            raise self.note("the completion's process ended before its tests did") from None
        except CannotTravel as error:
            if self.answered:
                raise self.note(str(error)) from None
            raise GoldError(str(error)) from None
        except (WireError, RecursionError, MemoryError) as error:
            raise self.note(f"the completion's process sent no plain data: {error}") from None
        if len(reply) == 2:
            self.answered = True
            raise self._exception(*map(_text, reply))
        self.answered |= request != "load" and not (request == "look_up" and type(reply[0]) is Remote)
        return reply[0]

    def note(self, trouble: str) -> Trouble:
        self.trouble = trouble
        return Trouble(trouble)

    def _exception(self, name: str, text: str) -> BaseException:
        """The built-in exception of that name, so that tests may expect a ValueError.

        SystemExit and its like are trouble, and so is StopIteration: raised inside `map` it would end a loop over test
        cases as if all had passed.
        """
        kind = getattr(builtins, name, None)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            return CandidateError(f"{name}: {text}")
        if not issubclass(kind, Exception) or issubclass(kind, (StopIteration, StopAsyncIteration)):
            return self.note(f"{name}: {text}")
        try:
            return kind(text)
        except TypeError:  # UnicodeDecodeError and its like want more than a message
            return CandidateError(f"{name}: {text}")


def _text(value: Any) -> str:
    return value if type(value) is str else ""


def _handle(value: Any) -> int:
    if isinstance(value, Remote):
        return value._number
    raise CannotTravel(f"the tests pass a {type(value).__name__} to the completion; only plain data can be passed")


class Remote:
    """An object of the candidate's process: it can be called, read, set, indexed and iterated over, not compared."""

    __slots__ = ("_link", "_number")
    __hash__ = None  # pyright: ignore[reportAssignmentType]  # object declares it a method

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.ask("call", self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of this interpreter (copy, pickle) are not for the candidate to answer
            raise AttributeError(name)
        return self._link.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("set", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._link.ask("item", self, key)

    def __len__(self) -> int:
        return self._link.ask("len", self)

    def __str__(self) -> str:
        return self._link.ask("str", self)

    def __iter__(self) -> Iterator[Any]:
        iteration = self._link.ask("iter", self)  # "next" brings a tuple of one item, or of none at the end
        while True:
            found = self._link.ask("next", iteration)
            if type(found) is not tuple or len(found) > 1:
                raise self._link.note("the completion's process sent no item")
            if not found:
                return
            yield found[0]

    def _refuse(self, *_: Any) -> Any:
        raise self._link.note("the tests compare an object that is not plain data; its own word is not taken for it")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = _refuse


def check(spec: dict, link: Link, tell: Callable[..., None]) -> None:
    """Runs the tests of `spec` and tells what happened, in two lines.

    `spec`: {"tests", "setup", "check", "entry_point", "prompt", "partial"} as in `CodeTests` and `verify`; "names", the
    completion's that the tests use; "setup_calls", whether the set-up code is among them; "modules" used without an
    import.

    First "started", when all that needs no completion is done: from here on the completion answers for the time and
    for crashes. Then the outcome "done", "gold" (unusable tests) or "gone" (the candidate's process ended), the number
    of tests passed, of calls made, and a detail.
    """
    passed, detail = 0, ""
    outcome = "done"
    try:
        tests = _Tests(spec, link)
        link.wait_ready()
        tell("started")
        link.ask("load")
        tests.bind()
        for number, test in enumerate(tests.runs, start=1):
            problem = _problem(test, link)
            passed += not problem
            detail = detail or (f"test {number}: {problem}" if problem else "")
            if link.closed or (problem and not spec["partial"]):
                break
    except GoldError as error:
        outcome, detail = "gold", str(error)
    except BaseException as error:  # raised while the completion's code was loaded or looked up
        detail = _describe(error)
    if link.closed:
        outcome = "gone"
    tell(outcome, passed, link.calls, detail[:1000])


def _problem(test: Callable[[], Any], link: Link) -> str:
    """Why a test has not passed, or nothing."""
    link.trouble = ""
    try:
        test()
    except GoldError:
        raise
    except BaseException as error:  # a test may raise anything at all; whatever it is, it has not passed
        return link.trouble or _describe(error)
    return link.trouble


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class _Tests:
    """Gold code, compiled; `runs` are the tests, to be called in order."""

    def __init__(self, spec: dict, link: Link) -> None:
        self.link = link
        self.entry_point = spec["entry_point"]
        self.names = spec["names"]
        self.checks = bool(spec["check"])
        self.namespace: dict[str, Any] = {"__name__": "tests"}
        self.setup = None
        self._trusted(_compiled(compile_prompt, spec["prompt"]))
        imports = "".join(f"import {name}\n" for name in spec["modules"])
        self._trusted(_compiled(compile, imports, "modules", "exec"))
        if self.checks:
            self._trusted(_compiled(compile, spec["check"], "check", "exec"))
            if not callable(self.namespace.get("check")):
                raise GoldError("the tests define no function check(candidate)")
            self.runs = [lambda: self.namespace["check"](self.namespace[self.entry_point])]
            return
        codes = [_compiled(compile, source, "tests", "exec") for source in spec["tests"]]
        self.runs = [lambda code=code: exec(code, self.namespace) for code in codes]
        self.setup = _compiled(compile, spec["setup"], "setup", "exec")
        if not spec["setup_calls"]:
            self._trusted(self.setup)
            self.setup = None

    def _trusted(self, code: CodeType) -> None:
        """Runs gold code that does not need the completion."""
        try:
            exec(code, self.namespace)
        except BaseException as error:
            raise GoldError(f"the gold code raised {_describe(error)}") from None

    def bind(self) -> None:
        """Looks up the completion's names and runs set-up code that needs them."""
        for name in self.names:
            try:
                self.namespace[name] = self.link.ask("look_up", name)
            except NameError:
                if name == self.entry_point:
                    raise
                self.namespace[name] = self._undefined(name)
        if self.checks and not callable(self.namespace[self.entry_point]):
            raise TypeError(f"{self.entry_point} is not a function")
        if self.setup:
            exec(self.setup, self.namespace)

    def _undefined(self, name: str) -> Callable:
        def undefined(*_: Any, **__: Any) -> None:
            raise self.link.note(f"the completion does not define {name!r}")

        return undefined


def _compiled(compiler: Callable[..., CodeType], *arguments: str) -> CodeType:
    try:
        return compiler(*arguments)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise GoldError(f"the gold code does not compile: {error}") from None
