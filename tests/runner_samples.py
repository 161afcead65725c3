"""Functions that the runner's tests run in worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def double(value: int) -> int:
    return 2 * value


def behave(kind: str, value: int) -> object:
    """Do what `kind` says; the harmless kind returns `value`."""
    if kind == "sleep":
        time.sleep(60)
    if kind == "spin":
        while True:
            pass
    if kind == "bigint":  # one C call that holds the interpreter's lock
        return len(str(9**9**8))
    if kind == "memory":
        return len(bytearray(8 << 30))
    if kind == "raise":
        raise ValueError("a sample's own error")
    if kind == "exit":
        sys.exit(0)
    if kind == "os-exit":
        os._exit(0)
    if kind == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "recursion":
        return behave(kind, value)
    if kind == "lambda":
        return lambda: value
    if kind == "print":
        print("not a reply")
        sys.stdout.flush()
    if kind == "grandchild":
        return subprocess.Popen(["sleep", "300"]).pid
    if kind == "grandchild-sleep":
        subprocess.Popen(["sleep", "301"])
        time.sleep(60)
    if kind == "pid":
        return os.getpid()
    return value


def slow_judge(gold: str, answer: str) -> object:
    """Stands in for the maths judge: anything with an alpha takes for ever, with a beta it crashes."""
    from phloem.rewards.maths.judge import judge_with_algebra

    if "\\alpha" in gold + answer:
        time.sleep(60)
    if "\\beta" in gold + answer:
        os._exit(3)
    return judge_with_algebra(gold, answer)
