"""Ctrl-C and SIGTERM: a step under way is finished, a checkpoint is written, and the run says how to go on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any

from phloem.kinds import Stopped

__all__ = ["StopSignals"]

ONE_REQUEST = 1.0
"""Seconds within which a second signal is the first one passed on."""


class StopSignals:
    """Hears SIGINT and SIGTERM while it is entered.

    Outside `deferred` a signal stops the run where it is. Inside, the first one is kept in `heard` for the loop to see
    between two steps, and a second one stops the run where it is. (A launcher of several processes passes on what the
    terminal has sent to all of them already, so two signals at once are one.)

    Attributes:
        heard: the signal that asks to stop, None if there was none.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.heard: int | None = None
        self._when = 0.0
        self._announce = announce
        self._deferring = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._hear)
            except ValueError:  # not the main thread: whoever runs this one handles signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, the first signal waits for the end of the step."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._deferring and self.heard is not None and monotonic() - self._when < ONE_REQUEST:
            return
        if not self._deferring or self.heard is not None:
            raise Stopped(number)
        self.heard, self._when = number, monotonic()
        self._announce(f"{signal.Signals(number).name}: stopping after this step; once more stops at once")
