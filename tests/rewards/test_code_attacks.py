"""No attack passes, none escapes, each ends within its limit. All checks are made from outside."""

from __future__ import annotations

import os
import socket
import time
import uuid
from pathlib import Path

import pytest
from code_attacks import ADD, ATTACKS, Attack

from phloem.rewards.code import verify
from phloem.rewards.sandbox import Limits
from phloem.rewards.verdict import Verdict

MARK = f"phloem-escape-{uuid.uuid4().hex}"
LIMITS = Limits(wall_seconds=4.0, cpu_seconds=2, memory_bytes=256 << 20, file_bytes=(8 << 20) + os.getpid())
"""The file limit is this test run's own: every process that a sandbox of it leaves behind would show it."""
SLACK_SECONDS = 6.0  # for two sandboxes to start and to be torn down on a busy machine


@pytest.fixture(scope="module")
def listeners():
    """Sockets outside that a connection from inside would reach: TCP, UDP and an abstract UNIX name."""
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(tcp.getsockname())
    named = socket.socket(socket.AF_UNIX)
    named.bind(f"\0{MARK}")
    named.listen()
    for each in (tcp, udp, named):
        each.setblocking(False)
    yield tcp, udp, named
    for each in (tcp, udp, named):
        each.close()


def run(attack: Attack, port: int) -> tuple[Verdict, float]:
    code = attack.code.replace("@MARK@", MARK).replace("@PORT@", str(port))
    start = time.monotonic()
    verdict = verify(completion=f"```python\n{code}\n```", answer=attack.answer, limits=LIMITS)
    return verdict, time.monotonic() - start


def processes_left() -> list[str]:
    left = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f" {LIMITS.file_bytes} " in (entry / "limits").read_text():
                left.append((entry / "status").read_text().partition("\n")[0])
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return left


def children() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            names.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return [name for name in names if name in ("bwrap", "setpriv")]


def files_left() -> list[Path]:
    folders = {Path(p) for p in ("/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/usr/lib", "/root", "/home", Path.cwd())}
    return [folder / MARK for folder in folders if os.access(folder, os.X_OK) and (folder / MARK).exists()]


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
def test_an_attack_is_scored_zero_in_time_and_leaves_nothing(attack: Attack, listeners):
    verdict, seconds = run(attack, listeners[0].getsockname()[1])
    assert verdict.reward == 0.0, verdict  # None would be an escape too: a hostile completion is always scored
    assert seconds < LIMITS.wall_seconds + SLACK_SECONDS
    assert processes_left() == []
    assert children() == []
    assert files_left() == []
    for listener in listeners:
        with pytest.raises(BlockingIOError):
            listener.recvfrom(1) if listener.type == socket.SOCK_DGRAM else listener.accept()


def test_the_watch_from_outside_sees_what_it_should(tmp_path):
    """A check that cannot fail proves nothing: while an attack runs, its processes are there to be seen."""
    import threading

    thread = threading.Thread(target=run, args=(Attack("sleep", "import time\ntime.sleep(999)"), 1))
    thread.start()
    deadline = time.monotonic() + LIMITS.wall_seconds
    while not processes_left() and time.monotonic() < deadline:
        time.sleep(0.05)
    seen = processes_left()
    thread.join()
    assert len(seen) >= 1
    assert processes_left() == []


def test_there_are_at_least_forty_attacks_and_an_honest_program_passes():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 40
    honest = "def add(a, b):\n    return a + b"
    assert verify(completion=honest, answer=ADD, limits=LIMITS).reward == 1.0
