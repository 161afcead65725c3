"""A pool of worker processes that runs one function on many samples under hard limits.

`Runner("package.module:function")` starts a supervisor process per worker (see `worker.py`). Each sample has a
wall-clock and a memory limit, enforced by killing, and comes back as a `Result`, a `Timeout` or a `Crash`; a hostile
sample costs itself and a fork of a few milliseconds. Safe from any thread and event loop (a call blocks its thread),
and after a fork of the caller. No process survives the caller, however it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from phloem.rewards.worker import STARVED_FACTOR, read_message, write_message

__all__ = ["Crash", "Outcome", "Result", "Runner", "RunnerError", "Timeout"]

_START_SECONDS = 60.0
_GRACE_SECONDS = 10.0
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from phloem.rewards.worker import main; main()"


class RunnerError(RuntimeError):
    """The workers cannot start: the function does not import, or no process can be made."""


@dataclass(frozen=True)
class Result:
    value: Any


@dataclass(frozen=True)
class Timeout:
    """The sample ran past `seconds` of wall clock and was killed."""

    seconds: float


@dataclass(frozen=True)
class Crash:
    """The sample raised, ran out of memory or ended its process. `infrastructure`: the supervisor itself was lost,
    again and again, so that the sample may not be to blame."""

    detail: str
    infrastructure: bool = False


Outcome = Result | Timeout | Crash


class Runner:
    """`workers` processes that run `function` (given as "package.module:function") on tuples of picklable arguments.

    seconds: wall clock per sample, extended while an overloaded machine gives it no processor.
    memory_mb: address space of the process that runs it, in MiB (not enforced on macOS, which has no such limit).
    warm: modules to import once, before any sample (the function's own module always is).

    Processes start at the first call. Use as a context manager or call `close`; the interpreter's exit does it
    otherwise.
    """

    def __init__(
        self,
        function: str,
        *,
        workers: int | None = None,
        seconds: float = 1.5,
        memory_mb: int = 1024,
        warm: Sequence[str] = (),
    ) -> None:
        if ":" not in function:
            raise ValueError(f"name the function as 'package.module:function', not {function!r}")
        if seconds <= 0 or memory_mb < 64:
            raise ValueError(f"seconds must be positive and memory_mb at least 64, not {seconds} and {memory_mb}")
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = workers if workers is not None else max(1, min(8, available))
        if self.workers < 1:
            raise ValueError(f"a runner needs at least one worker, not {workers}")
        self.seconds = seconds
        self._setup = {"function": function, "memory_bytes": memory_mb << 20, "warm": tuple(warm)}
        self._reset()
        _live.add(self)

    def _reset(self) -> None:
        self._condition = threading.Condition()
        self._idle: list[_Slot] = []
        self._started: list[_Slot] = []
        self._closed = False

    # -- running -----------------------------------------------------------------------------------------------------

    def call(self, *args: Any) -> Outcome:
        """One sample's outcome."""
        return self.map([args])[0]

    def map(self, samples: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """One outcome per sample, in their order. Raises RunnerError when workers cannot start."""
        outcomes: list[Outcome | None] = [None] * len(samples)
        waiting = deque((index, 0) for index in range(len(samples)))
        slots: list[_Slot] = []
        try:
            with selectors.DefaultSelector() as selector:
                while waiting or any(slot.task is not None for slot in slots):
                    if waiting and len(slots) < min(self.workers, len(samples)):
                        self._add_slot(slots, selector)
                    for slot in slots:
                        if slot.ready and slot.task is None and waiting:
                            slot.send(waiting.popleft(), samples, self.seconds)
                    for slot in self._responsive(slots, selector):
                        task, outcome = slot.receive()
                        if slot.lost:
                            selector.unregister(slot.reader)
                            slots.remove(slot)
                            self._discard(slot)
                        if task is None and outcome is not None:
                            raise RunnerError(f"a worker could not start:\n{outcome}")
                        if task is None:
                            continue  # it has only just started
                        index, tries = task
                        if slot.lost and tries < self.workers:
                            waiting.appendleft((index, tries + 1))
                        else:
                            outcomes[index] = outcome
        finally:
            self._release(slots)
        done = [outcome for outcome in outcomes if outcome is not None]
        if len(done) < len(outcomes):
            raise RunnerError("a sample was left without an outcome")
        return done

    def _add_slot(self, slots: list[_Slot], selector: selectors.BaseSelector) -> None:
        """One more slot, if one is free; the first is waited for."""
        slot = self._acquire(block=not slots)
        if slot is not None:
            slots.append(slot)
            selector.register(slot.reader, selectors.EVENT_READ, slot)

    def _responsive(self, slots: list[_Slot], selector: selectors.BaseSelector) -> list[_Slot]:
        """Slots with something to say, and those past their last deadline."""
        now = time.monotonic()
        nearest = min((slot.deadline for slot in slots), default=now)
        events = selector.select(max(0.0, min(nearest - now, 1.0)))
        ready = [key.data for key, _ in events]
        now = time.monotonic()
        return ready + [slot for slot in slots if slot not in ready and slot.deadline < now]

    # -- slots -------------------------------------------------------------------------------------------------------

    def _acquire(self, *, block: bool) -> _Slot | None:
        with self._condition:
            while True:
                if self._closed:
                    raise RunnerError("this runner is closed")
                while self._idle:
                    slot = self._idle.pop()
                    if slot.process.poll() is None:
                        return slot
                    slot.abandon()  # killed from outside while it was idle
                    self._started.remove(slot)
                if len(self._started) < self.workers:
                    slot = _Slot({**self._setup, "path": list(sys.path)})
                    self._started.append(slot)
                    return slot
                if not block:
                    return None
                self._condition.wait()

    def _release(self, slots: list[_Slot]) -> None:
        with self._condition:
            for slot in slots:
                if slot.task is not None or self._closed:  # left in the middle: by an exception, or closed meanwhile
                    slot.kill()
                    if slot in self._started:
                        self._started.remove(slot)
                else:
                    self._idle.append(slot)
            self._condition.notify_all()

    def _discard(self, slot: _Slot) -> None:
        slot.kill()
        with self._condition:
            self._started.remove(slot)
            self._condition.notify_all()

    def pids(self) -> list[int]:
        """Process ids of the supervisors that run now."""
        with self._condition:
            return [slot.process.pid for slot in self._started]

    def close(self) -> None:
        """End all workers. Further calls raise RunnerError."""
        with self._condition:
            self._closed = True
            for slot in self._idle:
                slot.kill()
                self._started.remove(slot)
            self._idle.clear()
            self._condition.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self) -> None:
        """In a forked child: the workers are the parent's."""
        for slot in self._started:
            slot.abandon()
        self._reset()


class _Slot:
    """One supervisor process, seen from the caller. `task` is the sample it runs: (index, earlier tries)."""

    def __init__(self, setup: dict[str, Any]) -> None:
        root = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, root],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                bufsize=0,
            )
        except OSError as error:
            raise RunnerError(f"cannot start a worker process: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.writer, self.reader = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.task: tuple[int, int] | None = None
        self.ready = self.lost = False
        self.deadline = time.monotonic() + _START_SECONDS
        with contextlib.suppress(BrokenPipeError):  # its end shows up as a failure to start
            write_message(self.writer, setup)

    def send(self, task: tuple[int, int], samples: Sequence[tuple[Any, ...]], seconds: float) -> None:
        self.task, self.deadline = task, time.monotonic() + (1 + STARVED_FACTOR) * seconds + _GRACE_SECONDS
        with contextlib.suppress(BrokenPipeError):  # seen as a lost supervisor by `receive`
            write_message(self.writer, (samples[task[0]], seconds))

    def receive(self) -> tuple[tuple[int, int] | None, Any]:
        """(task, outcome) of the message that waits; (None, None) for the greeting; (None, why) for a failed start."""
        task, late = self.task, time.monotonic() > self.deadline
        kind: str
        value: Any
        try:
            kind, value = ("lost", "no reply") if late else read_message(self.reader)
        except (EOFError, OSError):
            kind, value = "lost", "the process ended"
        self.task, self.deadline = None, float("inf")
        if kind == "ready":
            self.ready = True
            return None, None
        if kind in ("lost", "broken"):
            self.lost = True
            return task, Crash(f"the supervisor process was lost: {value}", infrastructure=True) if task else value
        if kind == "timeout":
            return task, Timeout(value)
        return task, Result(value) if kind == "result" else Crash(value)

    def kill(self) -> None:
        """End the supervisor; its child dies with it."""
        self.abandon()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=0.5)  # closed input is the polite way, and it takes its child along
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def abandon(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


_live: weakref.WeakSet[Runner] = weakref.WeakSet()


def _close_all() -> None:
    for runner in list(_live):
        runner.close()


def _forget_all() -> None:
    for runner in list(_live):
        runner._forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
