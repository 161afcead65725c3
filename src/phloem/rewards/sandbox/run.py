"""The two things a sandbox is used for: one program on standard input and output, or a completion and its tests.

Results travel out of band. A program's standard output is a file of its own; what the tests found comes through a pipe
that only the tests' sandbox holds, and a completion's code is never in that one.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from phloem.rewards.sandbox.launch import Process, SandboxUnavailable, memory_file, readable, start
from phloem.rewards.sandbox.limits import Limits

__all__ = ["Ended", "Report", "Told", "require", "run", "talk"]

_MAX_REPORT_BYTES = 1 << 20
_MAX_STDERR_BYTES = 2000
_PATIENCE_SECONDS = 1.0
_CPU_KILLS = (128 + signal.SIGKILL, 128 + signal.SIGXCPU)


@dataclass(frozen=True)
class Ended:
    """How one program ended."""

    started: bool
    """Whether the sandbox came to run it; if not, the machine is to blame."""
    exit_status: int | None
    """128 + n after signal n, None after a time-out on the wall clock."""
    out_of_time: bool
    """On the wall clock or in CPU time."""
    stdout: bytes
    stderr: str
    """The last 2000 bytes."""


class Report(NamedTuple):
    """What `inside/checker.py` found; its `check` says what the fields hold."""

    outcome: str
    passed: int
    calls: int
    detail: str


@dataclass(frozen=True)
class Told:
    """What came of a completion's tests."""

    started: bool
    """Whether the gold code was ready and the completion's sandbox up: until then nothing is the completion's fault."""
    report: Report | None
    """None where the tests did not finish."""
    out_of_time: bool
    ends: str
    """How both processes ended, for a person to read."""


@functools.cache
def require() -> None:
    """Runs one trivial program. Raises SandboxUnavailable, with what bubblewrap said and what to do about it."""
    ended = run("print(40 + 2)", b"", Limits())
    if ended.stdout != b"42\n":
        raise SandboxUnavailable(
            "bubblewrap cannot start a sandbox on this machine"
            f" (exit status {ended.exit_status}): {ended.stderr.strip() or 'no message'}\n"
            "It needs unprivileged user namespaces: kernel.unprivileged_userns_clone=1, user.max_user_namespaces > 0,"
            " kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu) or a profile for bwrap;"
            " in a container, a seccomp profile that allows unshare and mount."
        )


def run(program: str, stdin: bytes, limits: Limits) -> Ended:
    """Runs Python source as `__main__` with `stdin` as its standard input.

    Raises SandboxUnavailable, or OSError if the machine is out of descriptors or processes.
    """
    deadline = time.monotonic() + limits.wall_seconds
    with _Files() as files:
        mark_read, mark_write = files.pipe()
        streams = (files.memory(stdin), files.memory(), files.memory())
        with start("script", program, {"mark": mark_write}, limits, streams) as process:
            status = process.wait(deadline)
        files.close(mark_write)
        return Ended(
            started=os.read(mark_read, 16) == b"started\n",
            exit_status=status,
            out_of_time=status is None or _spent(process, status, limits),
            stdout=os.pread(streams[1], limits.file_bytes, 0),
            stderr=_tail(streams[2]),
        )


def talk(program: Mapping[str, str], spec: Mapping[str, Any], limits: Limits) -> Told:
    """Runs the tests `spec` (see `inside/checker.py`) against `program` {"prompt", "code"}, each in its own sandbox.

    Both have `limits`, and one deadline. Raises as `run`.
    """
    deadline = time.monotonic() + limits.wall_seconds
    with _Files() as files:
        to_candidate, from_checker = files.pipe()
        to_checker, from_candidate = files.pipe()
        told, tell = files.pipe()
        null = files.own(os.open(os.devnull, os.O_RDWR))
        streams = [(null, null, files.memory()) for _ in range(2)]
        candidate_files = {"inward": to_candidate, "outward": from_candidate}
        checker_files = {"inward": to_checker, "outward": from_checker, "mark": tell}
        with (
            start("candidate", program, candidate_files, limits, streams[0]) as candidate,
            start("checker", spec, checker_files, limits, streams[1]) as checker,
        ):
            files.close(*candidate_files.values(), *checker_files.values())
            lines = _read_lines(told, deadline)
            started = lines[:1] == ["started"]
            report = _report(lines[-1]) if lines and lines[-1] != "started" else None
            late = report is None and time.monotonic() >= deadline
            early = not late and (report is None or report.outcome == "gone")
            patience = time.monotonic() + (_PATIENCE_SECONDS if early else 0)  # for an exit status that tells why
            sides = ((candidate, candidate.wait(patience)), (checker, checker.wait(patience)))
        late = late or (early and any(_spent(process, status, limits) for process, status in sides))
        ends = (_end(status, stream[2]) for (_, status), stream in zip(sides, streams, strict=True))
        return Told(started, report, late, "completion: {}; tests: {}".format(*ends))


def _read_lines(file: int, deadline: float) -> list[str]:
    """The checker's lines, until it has closed the pipe or the deadline has come; an unfinished line does not count."""
    data = b""
    while len(data) < _MAX_REPORT_BYTES and readable(file, deadline):
        chunk = os.read(file, 1 << 16)
        if not chunk:
            break
        data += chunk
    return data.decode("utf-8", "replace").split("\n")[:-1]


def _report(line: str) -> Report:
    outcome, passed, calls, detail = line.split("\t")
    return Report(outcome, int(passed), int(calls), detail)


def _spent(process: Process, status: int | None, limits: Limits) -> bool:
    """Whether the kernel killed it for its CPU time."""
    return status in _CPU_KILLS and process.cpu_seconds > limits.cpu_seconds - 0.5


def _end(status: int | None, stderr: int) -> str:
    text = "still running" if status is None else f"exit status {status}"
    last = _tail(stderr).strip().rpartition("\n")[2]
    return f"{text} ({last})" if last else text


def _tail(file: int) -> str:
    size = os.fstat(file).st_size
    return os.pread(file, _MAX_STDERR_BYTES, max(0, size - _MAX_STDERR_BYTES)).decode("utf-8", "replace")


class _Files:
    """Descriptors that are closed together."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def own(self, file: int) -> int:
        self._open.add(file)
        return file

    def pipe(self) -> tuple[int, int]:
        read, write = os.pipe()
        return self.own(read), self.own(write)

    def memory(self, data: bytes = b"") -> int:
        return self.own(memory_file(data))

    def close(self, *files: int) -> None:
        for file in files:
            self._open.remove(file)
            os.close(file)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(*self._open)
