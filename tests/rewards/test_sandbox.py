"""What a program inside the sandbox can see and use, told by such programs themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from phloem.rewards.sandbox import Limits, run
from phloem.rewards.sandbox.inside.wire import WireError, decode, encode

LIMITS = Limits(wall_seconds=8.0, cpu_seconds=3)


def see(program: str, limits: Limits = LIMITS, stdin: bytes = b""):
    """What a program prints, evaluated."""
    ended = run(f"import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\n{program}", stdin, limits)
    assert ended.started
    assert ended.exit_status == 0, ended.stderr
    return eval(ended.stdout)


def test_no_capability_is_left():
    program = """
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert c.capget(header, data) == 0
bounding = [i for i in range(64) if c.prctl(23, i, 0, 0, 0) == 1]
ambient = [i for i in range(64) if c.prctl(47, 1, i, 0, 0) == 1]
print((list(data), bounding, ambient, c.prctl(39, 0, 0, 0, 0), c.prctl(21, 0, 0, 0, 0)))
"""
    no_new_privileges, filtered = 1, 2
    assert see(program) == ([0] * 6, [], [], no_new_privileges, filtered)


def test_the_user_is_not_root_and_sees_no_other_process():
    assert see("print((os.getresuid(), os.getresgid(), os.getgroups(), os.getpid(), os.getppid()))") == (
        (1000, 1000, 1000),
        (1000, 1000, 1000),
        [] if os.geteuid() == 0 else [65534] * len(os.getgroups()),
        1,
        0,
    )


def test_the_launchers_environment_does_not_reach_inside(monkeypatch):
    monkeypatch.setenv("PHLOEM_TEST_SECRET", "sugar")
    names = see("print((sorted(os.environ), os.path.exists('/proc'), 'sugar' in str(os.environ)))")
    assert names == (["HOME", "LANG", "MALLOC_ARENA_MAX", "PWD", "PYTHONHASHSEED"], False, False)


def test_only_python_is_there_and_only_tmp_can_be_written():
    program = """
writable = []
for root, folders, files in os.walk('/'):
    writable += [root for way in [os.path.join(root, 'x')] if not os.path.exists(way) and os.access(root, os.W_OK)]
top = set(os.listdir('/')) - {'etc', 'lib', 'lib64', 'usr', 'dev', 'tmp'}
print((sorted(top), sorted(os.listdir('/dev')), writable))
"""
    others, devices, writable = see(program)
    assert devices == ["null", "urandom", "zero"]
    assert writable == ["/tmp"]
    top = sys.base_prefix.split("/")[1]
    assert others == ([] if top == "usr" else [top])


def test_no_installed_package_is_visible():
    program = """
found = [os.path.join(root, name) for root, names, _ in os.walk('/') for name in names if name.endswith('-packages')]
print([path for path in found if os.listdir(path)])
"""
    assert see(program) == []


def test_limits_hold():
    limits = Limits(wall_seconds=8.0, cpu_seconds=3, processes=5, tmp_bytes=3 << 20, file_bytes=1 << 20, open_files=20)
    program = """
import resource
def fill(path):
    size = 0
    try:
        with open(path, 'wb', buffering=0) as file:
            while True: size += file.write(b'x' * 65536)
    except OSError: return size
files = [fill(f'/tmp/{i}') for i in range(5)]
processes = 1
try:
    while True:
        if os.fork() == 0: os.read(os.pipe()[0], 1)
        processes += 1
except OSError: pass
held = []
try:
    while True: held.append(os.open('/dev/null', 0))
except OSError: pass
try: memory = len(bytearray(2 << 30))
except MemoryError: memory = 0
print((files, processes, max(held), memory), flush=True)
os._exit(0)
"""
    files, processes, highest, memory = see(program, limits)
    assert files == [1 << 20] * 3 + [0] * 2
    assert processes == 5
    assert highest == 19
    assert memory == 0


def test_processor_time_is_limited():
    ended = run("while True: pass", b"", Limits(wall_seconds=60.0, cpu_seconds=1))
    assert ended.out_of_time
    assert ended.exit_status == 128 + 9


def test_standard_output_is_limited():
    ended = run("import os\nwhile True: os.write(1, b'x' * 65536)", b"", Limits(file_bytes=1 << 20))
    assert len(ended.stdout) == 1 << 20
    assert "File too large" in ended.stderr


def test_each_run_starts_afresh():
    program = "print((os.listdir('/tmp'), os.getcwd()))\nopen('/tmp/x', 'w').close()"
    assert see(program) == see(program) == ([], "/tmp")


def test_nothing_survives_its_first_process():
    """A child that outlives it would write to the same standard output."""
    ended = run("import os, time\nif os.fork() == 0:\n    time.sleep(1)\n    print('alive', flush=True)", b"", LIMITS)
    assert (ended.exit_status, ended.stdout) == (0, b"")


def test_the_sandbox_dies_with_its_launcher():
    program = (
        "from phloem.rewards.sandbox import Limits, run\n"
        f"run('import time; time.sleep(60)', b'', Limits(wall_seconds=60.0, file_bytes={(7 << 20) + os.getpid()}))"
    )
    launcher = subprocess.Popen([sys.executable, "-c", program])
    assert _wait(lambda: len(_sandboxed()) > 0)
    launcher.kill()
    launcher.wait()
    assert _wait(lambda: len(_sandboxed()) == 0)


def _sandboxed() -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/limits") as file:
                found += [pid] * (f" {(7 << 20) + os.getpid()} " in file.read())
        except OSError:
            continue
    return found


def _wait(condition, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize(
    ("field", "value"),
    [("wall_seconds", 0), ("wall_seconds", float("nan")), ("processes", 1.5), ("memory_bytes", 1 << 20)],
)
def test_senseless_limits_are_refused(field, value):
    with pytest.raises(ValueError, match=f"Limits.{field} is"):
        Limits(**{field: value})


# The format between candidate and checker


def test_a_value_is_rebuilt_from_its_exact_type():
    class Always(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Rows(list):
        def __iter__(self):
            return iter([1])

    value = decode(encode([Always(3), Rows([7]), {Always(1): "x"}], opaque=lambda v: 0), handle=repr)
    assert value == [3, [7], {1: "x"}]
    assert [type(part) for part in value] == [int, list, dict]
    assert value[0] != 4


def test_what_is_not_plain_data_travels_as_a_number():
    seen = []
    data = encode((object, object(), len), opaque=lambda v: seen.append(v) or len(seen))
    assert decode(data, handle=lambda n: f"#{n}") == (object, "#1", "#2")
    assert seen[1] is len


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"i:", b"i1:", b"i1:g", b"i99:1", b"l2:n0:", b"n0:n0:", b"d1:n0:", b"e1:l0:", b"C4:eval", b"f3:abc",
     b"s1:\xff", b"i-1:5", b"l99999999999:", b"r3:n0:n0:n0:", b"h1:x", b"q0:", b"c1:1", b"D3:abc", b"Q3:1/0"],
)  # fmt: skip
def test_a_message_out_of_format_is_refused(data):
    with pytest.raises(WireError):
        decode(data, handle=repr)
