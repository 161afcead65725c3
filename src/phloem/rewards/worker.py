"""The far end of a `Runner`: a supervisor process that never runs a sample itself, and its child that does.

The supervisor imports the function's module once, then forks a child that answers samples one after another. It
measures wall clock, kills a child that is late and forks the next one from its warm image in milliseconds. A child that
is late only because the machine is overloaded (it is ready to run, but has had a processor for less than half its
limit) is given more time, up to four times the limit.

The supervisor has a single thread and runs no sample, so it always notices that its parent is gone: its input ends, it
kills the child and leaves. The child asks the kernel to be killed when the supervisor dies.

Messages are pickles with their length in front. Standard output of the function goes to standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import resource
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["STARVED_FACTOR", "load", "read_message", "write_message"]

_HEAD = struct.Struct("!Q")
_PR_SET_PDEATHSIG = 1
STARVED_FACTOR = 3  # how many times its limit a sample may wait longer because the machine gives it no processor


def write_message(fd: int, message: Any) -> None:
    """Send one picklable message. Raises BrokenPipeError when the other end is gone."""
    body = pickle.dumps(message)
    view = memoryview(_HEAD.pack(len(body)) + body)
    while view:
        view = view[os.write(fd, view) :]


def read_message(fd: int) -> Any:
    """The next message. Raises EOFError when the other end is gone."""
    (length,) = _HEAD.unpack(_read_exactly(fd, _HEAD.size))
    return pickle.loads(_read_exactly(fd, length))


def _read_exactly(fd: int, length: int) -> bytes:
    chunks = []
    while length:
        chunk = os.read(fd, min(length, 1 << 20))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        length -= len(chunk)
    return b"".join(chunks)


def load(name: str) -> Callable[..., Any]:
    """The function `package.module:function`. Raises ImportError, AttributeError."""
    module, _, function = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found


# -- child -----------------------------------------------------------------------------------------------------------


def _serve(function: Callable[..., Any], requests: int, replies: int, memory_bytes: int, supervisor: int) -> None:
    """Answer samples until the supervisor is gone. Never returns."""
    if sys.platform == "linux":  # elsewhere an orphan ends when its sample does: its input is closed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)  # what the sample starts itself is killed with it
    if os.getppid() != supervisor:
        os._exit(0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "darwin":  # macOS refuses this limit
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            args = read_message(requests)
            write_message(replies, _answer(function, args))
    os._exit(0)


def _answer(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        value = function(*args)
    except MemoryError:
        return "crash", "out of memory"
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a sample are the sample's crash
        return "crash", "".join(traceback.format_exception(error))[-4000:]
    try:
        pickle.dumps(value)
    except Exception as error:
        return "crash", f"the result cannot be pickled: {error}"
    return "result", value


class _Child:
    """One forked child with its two pipes."""

    def __init__(self, function: Callable[..., Any], memory_bytes: int, inherited: tuple[int, ...]) -> None:
        child_reads, self.requests = os.pipe()
        self.replies, child_writes = os.pipe()
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            for fd in (self.requests, self.replies, *inherited):
                os.close(fd)
            _serve(function, child_reads, child_writes, memory_bytes, supervisor)
        os.close(child_reads)
        os.close(child_writes)

    def end(self) -> int:
        """Kill the child, close its pipes and return its exit status (negative: the signal)."""
        for kill in (os.kill, os.killpg):  # the group exists once the child has reached setpgid
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.requests)
        os.close(self.replies)
        return os.waitstatus_to_exitcode(status)


# -- supervisor ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Serve the parent until it closes our input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    setup = read_message(requests)
    sys.path[:] = setup["path"]
    try:
        function = load(setup["function"])
        for name in setup["warm"]:
            importlib.import_module(name)
    except BaseException:
        write_message(replies, ("broken", traceback.format_exc()[-4000:]))
        return
    child = _Child(function, setup["memory_bytes"], (requests, replies))
    try:
        write_message(replies, ("ready", None))
        while True:
            outcome = _one_sample(child, requests)
            if outcome[0] in ("timeout", "died"):
                status = child.end()
                child = _Child(function, setup["memory_bytes"], (requests, replies))
                if outcome[0] == "died":
                    outcome = ("crash", f"the worker process ended with status {status}")
            write_message(replies, outcome)
    except (EOFError, BrokenPipeError):
        child.end()


def _one_sample(child: _Child, requests: int) -> tuple[str, Any]:
    """Pass one sample on and wait for its reply, its time limit or the end of the parent (EOFError)."""
    args, seconds = read_message(requests)
    try:
        write_message(child.requests, args)
    except BrokenPipeError:
        return "died", None
    deadline = time.monotonic() + seconds
    last = deadline + STARVED_FACTOR * seconds
    _, before = _state_and_cpu(child.pid)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            state, cpu = _state_and_cpu(child.pid)
            if state != "R" or cpu - before >= seconds / 2 or time.monotonic() >= last:
                return "timeout", seconds
            deadline, left = min(time.monotonic() + seconds / 4, last), seconds / 4  # it waits for a processor
        ready, _, _ = select.select([child.replies, requests], [], [], left)
        if child.replies in ready:
            try:
                return read_message(child.replies)
            except (EOFError, pickle.UnpicklingError):
                return "died", None
        if requests in ready:  # nothing is sent while a sample runs: the parent is gone
            raise EOFError


def _state_and_cpu(pid: int) -> tuple[str, float]:
    """The state letter of a process (R: runs or waits for a processor) and the processor seconds it has used."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return "", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
