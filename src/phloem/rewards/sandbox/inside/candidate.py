"""The completion's side: holds its code and serves calls from a checker that lives in another sandbox.

Nothing here is trusted once the completion's code has run: that code shares this process and can change all of it. It
gains nothing, because all that leaves is data which a function could as well have returned.
"""

from __future__ import annotations

import itertools
import sys
import types

from phloem.rewards.sandbox.inside.prompt import compile_prompt
from phloem.rewards.sandbox.inside.wire import Closed, decode, encode, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

MODULE = "solution"


def serve(program: dict[str, str], inward: BinaryIO, outward: BinaryIO) -> None:
    """Runs a program `{"prompt", "code"}` when the checker asks for it, then answers calls until nobody asks."""
    candidate = Candidate(**program)
    send(outward, b"ready")
    try:
        while True:
            send(outward, candidate.answer(receive(inward)))
    except Closed:
        return


class Candidate:
    """The program's module, and every object of it that the checker holds a handle of."""

    def __init__(self, prompt: str, code: str) -> None:
        self.prompt, self.code = prompt, code
        self.module = types.ModuleType(MODULE)
        self.objects: list[Any] = []

    def answer(self, message: bytes) -> bytes:
        """`(value,)` or `(class name, text)` of an exception, whatever the program does with one request."""
        try:
            request, *arguments = decode(message, self.objects.__getitem__)
            return encode((_REQUESTS[request](self, *arguments),), self._handle)
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the program's too
            return encode((type(error).__name__, _text(error)), self._handle)

    def load(self) -> None:
        """Runs the prompt's own definitions, then the code, as the module `solution`."""
        sys.modules[MODULE] = self.module
        exec(compile_prompt(self.prompt), self.module.__dict__)
        exec(compile(self.code, f"{MODULE}.py", "exec"), self.module.__dict__)

    def look_up(self, name: str) -> Any:
        if name not in self.module.__dict__:
            raise NameError(f"name {name!r} is not defined")
        return self.module.__dict__[name]

    def _handle(self, value: Any) -> int:
        self.objects.append(value)
        return len(self.objects) - 1


_REQUESTS = {
    "load": Candidate.load,
    "look_up": Candidate.look_up,
    "call": lambda self, function, args, kwargs: function(*args, **kwargs),
    "get": lambda self, target, name: getattr(target, name),
    "set": lambda self, target, name, value: setattr(target, name, value),
    "item": lambda self, target, key: target[key],
    "iter": lambda self, target: iter(target),
    "next": lambda self, iteration: tuple(itertools.islice(iteration, 1)),
    "len": lambda self, target: len(target),
    "str": lambda self, target: str(target),
}


def _text(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:  # an exception class of the program's with a broken __str__
        return ""
