"""Starts bubblewrap, waits for it with a deadline, and leaves nothing behind.

Every sandbox has namespaces of its own (user, process, network, IPC, host name, cgroup, mounts), no capability, no
network, no /proc, an empty environment, a read-only system with nothing but Python in it, a private /tmp of limited
size and a system call filter. bubblewrap itself runs as an unprivileged user even when the launcher is root, because
root is exempt from the process limit.
"""

from __future__ import annotations

import contextlib
import functools
import json
import marshal
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phloem.rewards.sandbox.limits import Limits
from phloem.rewards.sandbox.runtime import INSIDE, NOBODY, runtime
from phloem.rewards.sandbox.seccomp import LibraryMissing, filter_program

__all__ = ["Process", "SandboxUnavailable", "memory_file", "readable", "start"]

_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--as-pid-1", "--die-with-parent", "--new-session"),
    *("--cap-drop", "ALL", "--clearenv", "--hostname", "sandbox"),
)
_INSIDE = ("wire", "prompt", "candidate", "checker", "boot")
_BOOT = """
import marshal, sys, types
with open(int(sys.argv[1]), "rb") as file:
    order, codes = marshal.load(file)
for name, code in codes:
    module = sys.modules[name] = types.ModuleType(name)
    exec(code, module.__dict__)
module.main(order)
"""


class SandboxUnavailable(RuntimeError):
    """This machine cannot run the sandbox; the message says what to install or allow."""


@functools.cache
def _codes() -> list[tuple[str, Any]]:
    """The programs of `inside/`, compiled, in the order in which they import each other."""
    folder = Path(__file__).parent / "inside"
    names = [f"phloem.rewards.sandbox.inside.{name}" for name in _INSIDE]
    sources = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in _INSIDE]
    return [(name, compile(source, name, "exec")) for name, source in zip(names, sources, strict=True)]


def memory_file(data: bytes = b"") -> int:
    """A descriptor of an anonymous file with `data`, placed at its start. The caller closes it."""
    file = os.memfd_create("phloem")
    with open(file, "wb", closefd=False) as stream:
        stream.write(data)
    os.lseek(file, 0, os.SEEK_SET)
    return file


@functools.cache
def _command(tmp_bytes: int) -> tuple[str, ...]:
    """The command line up to what differs between launches. Raises SandboxUnavailable."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailable("the code sandbox needs bubblewrap: apt-get install bubblewrap (no bwrap in PATH)")
    become: tuple[str, ...] = ()
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise SandboxUnavailable("the code sandbox needs setpriv where it runs as root: apt-get install util-linux")
        become = (setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")
    try:
        seen = runtime()
    except OSError as error:
        raise SandboxUnavailable(f"the code sandbox finds no Python that it can show inside: {error}") from error
    arguments = [*_NAMESPACES, "--uid", str(INSIDE), "--gid", str(INSIDE)]
    for outside, inside in seen.mounts:
        arguments += ["--ro-bind", outside, inside]
    for target, inside in seen.links:
        arguments += ["--symlink", target, inside]
    for inside in seen.hidden:
        arguments += ["--tmpfs", inside, "--remount-ro", inside]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        arguments += ["--dev-bind", device, device]
    arguments += ["--size", str(tmp_bytes), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"]
    for name, value in (("HOME", "/tmp"), ("LANG", "C.UTF-8"), ("PYTHONHASHSEED", "0"), ("MALLOC_ARENA_MAX", "1")):
        arguments += ["--setenv", name, value]
    return (*become, bwrap, *arguments)


def start(role: str, payload: object, files: Mapping[str, int], limits: Limits, stdio: tuple[int, int, int]) -> Process:
    """A sandbox in which `inside/boot.py` plays `role`.

    `payload` is plain data for it; `files` maps a use to a descriptor that is handed in under the same number; `stdio`
    are its standard streams. The caller keeps its own copies of all descriptors and closes them.

    Raises SandboxUnavailable, or OSError if the machine is out of descriptors or processes.
    """
    command = _command(limits.tmp_bytes)
    with contextlib.ExitStack() as stack:

        def owned(file: int) -> int:
            stack.callback(os.close, file)
            return file

        order = {"role": role, "payload": payload, "limits": limits.resources(), "files": dict(files)}
        boot = owned(memory_file(marshal.dumps((order, _codes()))))
        try:
            rules = owned(memory_file(filter_program()))
        except LibraryMissing as error:
            raise SandboxUnavailable(
                f"the code sandbox needs libseccomp: apt-get install libseccomp2 ({error})"
            ) from None
        status_read, status_write = os.pipe()
        owned(status_write)
        python = (runtime().executable, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _BOOT, str(boot))
        try:
            outer = subprocess.Popen(
                (*command, "--seccomp", str(rules), "--json-status-fd", str(status_write), "--", *python),
                stdin=stdio[0], stdout=stdio[1], stderr=stdio[2], env={}, cwd="/",
                pass_fds=(rules, boot, status_write, *files.values()),
            )  # fmt: skip
            return Process(outer, status_read)
        except BaseException:
            os.close(status_read)
            raise


class Process:
    """A running sandbox. Use it as a context manager: on leaving, everything in it is dead and reaped.

    bubblewrap stays outside and waits for the first process inside; when that one dies, the kernel kills all others of
    its process namespace before its death is reported.
    """

    def __init__(self, outer: subprocess.Popen, status: int) -> None:
        self._outer = outer
        self._status = status
        try:
            self._pidfd = os.pidfd_open(outer.pid)
        except OSError:  # out of descriptors
            outer.kill()
            outer.wait()
            raise
        self.cpu_seconds = 0.0
        """User and system time of the first process inside, once it has ended."""

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self, deadline: float) -> int | None:
        """The exit status, 128 + n after signal n; None if `deadline` (of time.monotonic) comes first."""
        if self._outer.returncode is None:
            if not readable(self._pidfd, deadline):
                return None
            _, status, usage = os.wait4(self._outer.pid, 0)
            self._outer.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_seconds = usage.ru_utime + usage.ru_stime
            os.close(self._pidfd)
            os.close(self._status)
        code = self._outer.returncode
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        """Ends the sandbox and returns when it is gone. Does nothing if it has ended."""
        if self._outer.returncode is not None:
            return
        if not self._kill_inner() or self.wait(time.monotonic() + 5) is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)  # Popen.kill would reap it behind our back
            self.wait(float("inf"))

    def _kill_inner(self) -> bool:
        """Kills the first process inside, known to bubblewrap alone, which then ends by itself."""
        if not readable(self._status, time.monotonic() + 1):
            return False
        try:
            inner = json.loads(os.read(self._status, 4096).partition(b"\n")[0])["child-pid"]
            pidfd = os.pidfd_open(inner)
        except (ValueError, KeyError, OSError):  # it never started, or has just ended
            return False
        try:
            if _parent(inner) == self._outer.pid:  # else the number is already somebody else's
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(pidfd)
        return True


def _parent(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1])


def readable(file: int, deadline: float) -> bool:
    """Waits until `file` can be read or has ended; False if the deadline comes first."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    left = deadline - time.monotonic()
    return bool(poll.poll(None if left == float("inf") else max(0.0, left) * 1000))
