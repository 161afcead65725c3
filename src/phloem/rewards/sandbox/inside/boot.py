"""First code inside a sandbox: takes on the limits, drops every file that is not wanted, becomes one of three roles.

- `script`: a program that reads standard input and writes standard output.
- `candidate`: a completion's code that serves calls.
- `checker`: gold tests that make those calls.
"""

from __future__ import annotations

import itertools
import os
import resource
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO


def main(order: dict[str, Any]) -> None:
    """`order`: {"role", "payload", "limits": {RLIMIT name: value}, "files": {use: file descriptor}}."""
    files: dict[str, int] = order["files"]
    _close_all_but({0, 1, 2, *files.values()})
    for name, value in order["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    sys.argv[:] = ["solution.py"]
    {"script": _script, "candidate": _candidate, "checker": _checker}[order["role"]](order["payload"], files)


def _close_all_but(kept: set[int]) -> None:
    """The launcher's own pipes reach this far; the program must not find them."""
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for low, high in itertools.pairwise([-1, *sorted(kept), highest]):
        if low + 1 < high:  # closerange(0, 0) closes everything
            os.closerange(low + 1, high)


def _script(program: str, files: dict[str, int]) -> None:
    os.write(files["mark"], b"started\n")
    os.close(files["mark"])
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(program, "solution.py", "exec"), module.__dict__)


def _candidate(program: dict[str, str], files: dict[str, int]) -> None:
    from phloem.rewards.sandbox.inside.candidate import serve

    serve(program, *_link(files))


def _checker(spec: dict[str, Any], files: dict[str, int]) -> None:
    from phloem.rewards.sandbox.inside.checker import Link, check

    def tell(*words: object) -> None:
        line = "\t".join(str(word).replace("\t", " ").replace("\n", " ") for word in words)
        os.write(files["mark"], line.encode("utf-8", "replace") + b"\n")

    check(spec, Link(*_link(files)), tell)
    os._exit(0)  # not a moment for whatever the tests left behind


def _link(files: dict[str, int]) -> tuple[BinaryIO, BinaryIO]:
    return open(files["inward"], "rb"), open(files["outward"], "wb")
