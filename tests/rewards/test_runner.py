"""The runner: limits by killing, order, no child left behind, the same from threads, loops and forks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from phloem.rewards.runner import Crash, Result, Runner, RunnerError, Timeout


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner("runner_samples:behave", workers=2, seconds=1.0, memory_mb=512) as runner:
        yield runner


def children(pid: int) -> list[int]:
    """Process ids of all descendants, by the process table."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if fields[0] != "Z":
                    parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, level = [], [pid]
    while level:
        level = [child for parent in level for child in parents.get(parent, [])]
        found += level
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone_within(pids: list[int], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


def test_one_outcome_per_sample_in_order(runner: Runner) -> None:
    assert runner.map([("fine", n) for n in range(200)]) == [Result(n) for n in range(200)]
    assert runner.map([]) == []


@pytest.mark.parametrize("kind", ["sleep", "spin", "bigint"])
def test_a_late_sample_is_killed_at_its_limit(runner: Runner, kind: str) -> None:
    runner.call("fine", 0)
    began = time.monotonic()
    assert runner.call(kind, 0) == Timeout(1.0)
    assert time.monotonic() - began < 5  # the limit, the kill, the next fork, and a busy machine


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("memory", "memory"),
        ("raise", "a sample's own error"),
        ("exit", "SystemExit"),
        ("os-exit", "status 0"),
        ("segfault", f"status {-signal.SIGSEGV}"),
        ("recursion", "RecursionError"),
        ("lambda", "pickled"),
    ],
)
def test_a_crash_is_an_outcome_and_never_a_success(runner: Runner, kind: str, word: str) -> None:
    outcome = runner.call(kind, 0)
    assert isinstance(outcome, Crash)
    assert word in outcome.detail
    assert not outcome.infrastructure


def test_one_hostile_sample_of_64_costs_one_sample(runner: Runner) -> None:
    samples = [("fine", n) for n in range(64)]
    samples[17] = ("spin", 17)
    outcomes = runner.map(samples)
    assert outcomes[17] == Timeout(1.0)
    assert [o for n, o in enumerate(outcomes) if n != 17] == [Result(n) for n in range(64) if n != 17]


def test_what_a_sample_prints_is_no_reply(runner: Runner) -> None:
    assert runner.call("print", 5) == Result(5)


def test_processes_a_late_sample_started_die_with_it(runner: Runner) -> None:
    assert isinstance(runner.call("grandchild-sleep", 0), Timeout)
    sleepers = [pid for pid in children(1) if b"sleep\x00301" in _command(pid)]
    assert gone_within(sleepers, 3)


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_the_same_from_many_threads(runner: Runner) -> None:
    results: dict[int, object] = {}

    def work(n: int) -> None:
        results[n] = runner.map([("fine", n), ("fine", n + 100)])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {n: [Result(n), Result(n + 100)] for n in range(12)}


def test_the_same_inside_an_event_loop(runner: Runner) -> None:
    async def main() -> list[object]:
        direct = runner.call("fine", 1)
        return [direct, *await asyncio.gather(*(asyncio.to_thread(runner.call, "fine", n) for n in (2, 3)))]

    assert asyncio.run(main()) == [Result(1), Result(2), Result(3)]


def test_a_lost_supervisor_is_replaced_and_its_sample_tried_again(runner: Runner) -> None:
    runner.map([("fine", 1), ("fine", 2)])
    for pid in runner.pids():
        os.kill(pid, signal.SIGKILL)
    assert runner.map([("fine", 1), ("fine", 2), ("fine", 3)]) == [Result(1), Result(2), Result(3)]


def test_close_leaves_no_process() -> None:
    runner = Runner("runner_samples:double", workers=2)
    assert runner.map([(1,), (2,)]) == [Result(2), Result(4)]
    family = [*runner.pids(), *(child for pid in runner.pids() for child in children(pid))]
    assert len(family) >= 2
    runner.close()
    assert gone_within(family, 3)
    with pytest.raises(RunnerError, match="closed"):
        runner.call(1)


def test_a_function_that_does_not_import_is_an_error_with_its_reason() -> None:
    with Runner("runner_samples:missing", workers=1) as runner, pytest.raises(RunnerError, match="missing"):
        runner.call(1)


@pytest.mark.parametrize(("options", "word"), [({"workers": 0}, "worker"), ({"seconds": 0}, "seconds"),
                                               ({"memory_mb": 1}, "memory_mb")])  # fmt: skip
def test_limits_that_make_no_sense_are_refused(options: dict[str, float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Runner("runner_samples:double", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"package\.module:function"):
        Runner("double")


PARENT = """
    import sys, time
    sys.path.insert(0, {tests!r})
    from phloem.rewards.runner import Runner
    runner = Runner("runner_samples:behave", workers=2, seconds=30)
    runner.map([("fine", 1), ("fine", 2)])
    print("ready", *runner.pids(), flush=True)
    {rest}
"""


def run_parent(rest: str) -> tuple[subprocess.Popen[str], list[int]]:
    code = textwrap.dedent(PARENT).format(tests=str(Path(__file__).parents[1]), rest=rest)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    supervisors = [int(word) for word in process.stdout.readline().split()[1:]]
    assert supervisors
    return process, [*supervisors, *(child for pid in supervisors for child in children(pid))]


@pytest.mark.parametrize("rest", ["time.sleep(60)", 'runner.map([("spin", 0), ("sleep", 0)])'])
def test_no_process_survives_a_killed_parent(rest: str) -> None:
    process, family = run_parent(rest)
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert gone_within(family, 5)


def test_no_process_survives_a_plain_exit() -> None:
    process, family = run_parent("")
    assert process.wait(20) == 0
    assert gone_within(family, 5)


def test_a_forked_child_makes_its_own_workers() -> None:
    process, _ = run_parent(
        "import os\npid = os.fork()\n"
        'answer = runner.call("fine", 7).value\n'
        "if pid == 0:\n    os._exit(answer)\n"
        "_, status = os.waitpid(pid, 0)\n"
        "sys.exit(0 if (answer, os.waitstatus_to_exitcode(status)) == (7, 7) else 1)"
    )
    assert process.wait(30) == 0


STARVED = """
    import os, time
    from phloem.rewards import worker

    def slow(seconds):
        time.sleep(seconds)
        return "done"

    def outcome(state, cpu, seconds):
        readings = iter([(state, 0.0)])
        worker._state_and_cpu = lambda pid: next(readings, (state, cpu))
        child = worker._Child(slow, 1 << 40, ())
        requests, sender = os.pipe()
        worker.write_message(sender, ((seconds,), 0.2))
        got = worker._one_sample(child, requests)
        child.end()
        return got

    print(outcome("R", 0.0, 0.5), outcome("R", 0.2, 0.5), outcome("S", 0.0, 0.5), outcome("R", 0.0, 5.0))
"""


def test_a_sample_that_gets_no_processor_is_given_more_time_but_not_for_ever() -> None:
    script = textwrap.dedent(STARVED)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    late = ("timeout", 0.2)
    assert done.stdout.strip() == f"{('result', 'done')} {late} {late} {late}"
