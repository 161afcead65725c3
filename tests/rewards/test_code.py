"""Programs judged by tests: what passes, what fails, and whose fault the rest is."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from phloem.rewards.code import CodeTests, extract_code, verify, verify_many
from phloem.rewards.sandbox import Limits, SandboxUnavailable, launch, require
from phloem.rewards.verdict import Status

SHORT = Limits(wall_seconds=3.0, cpu_seconds=2)
ADD = {"tests": ["assert add(2, 3) == 5", "assert add(-1, 1) == 0"]}
GOOD = "def add(a, b):\n    return a + b"
HALF = "def add(a, b):\n    return 5"
CHECK = {
    "prompt": "import math\n\ndef area(r: float) -> float:\n    '''Area of a circle.'''\n",
    "check": "def check(candidate):\n    assert math.isclose(candidate(2), 4 * math.pi)\n    assert not candidate(0)\n",
    "entry_point": "area",
}
SUMS = {"stdin_stdout": [{"stdin": "1 2\n", "stdout": "3\n"}, ("4 5\n", "9"), ("0 0\n", "0\n\n")]}


def judge(code: str, answer, **options):
    options.setdefault("limits", SHORT)
    return verify(completion=f"```python\n{code}\n```", answer=answer, **options)


# Function tests


def test_a_right_function_passes_and_a_wrong_one_does_not():
    right, wrong = judge(GOOD, ADD), judge(HALF, ADD)
    assert (right.status, right.reward) == (Status.RIGHT, 1.0)
    assert (wrong.status, wrong.reward) == (Status.WRONG, 0.0)
    assert wrong.detail == "test 2: AssertionError"
    assert right.extracted.strip() == GOOD


def test_partial_credit_is_the_share_of_tests_passed():
    assert judge(HALF, ADD, partial=True).reward == 0.5
    assert judge(HALF, ADD, partial=True).status is Status.WRONG
    assert judge("print(3)", SUMS, partial=True).reward == pytest.approx(1 / 3)


def test_partial_credit_does_not_pay_a_time_out_or_a_crash():
    hang = "def add(a, b):\n    while a < 0: pass\n    return 5"
    leave = "import os\ndef add(a, b):\n    return 5 if a > 0 else os._exit(0)"
    assert (judge(hang, ADD, partial=True).status, judge(hang, ADD, partial=True).reward) == (Status.TIMEOUT, 0.0)
    assert (judge(leave, ADD, partial=True).status, judge(leave, ADD, partial=True).reward) == (Status.FAULT, 0.0)


@pytest.mark.parametrize(
    "completion",
    [
        "    return math.pi * r * r\n",
        "```python\nimport math\ndef area(r):\n    return math.pi * r**2\n```",
        "```python\nfrom __future__ import annotations\nfrom math import pi\ndef area(r):\n    return pi * r**2\n```",
        "Squares first.\n```python\n    return math.pi * r * r\n```\nDone.",
    ],
)
def test_a_prompt_is_continued_or_replaced(completion):
    assert verify(completion=completion, answer=CHECK, limits=SHORT).status is Status.RIGHT


def test_a_prompt_may_stop_at_the_signature():
    answer = {**CHECK, "prompt": "import math\ndef area(r):"}
    assert verify(completion="    return math.pi * r * r", answer=answer, limits=SHORT).status is Status.RIGHT


VALUES = """
def f(): return {'a': [1, (2.5, None)], 3: {4}, b'x': frozenset('y')}
>>> f() == {'a': [1, (2.5, None)], 3: {4}, b'x': frozenset('y')}

def f(): return 2j, range(3), bytearray(b'z'), 3**99, -(2**70), True
>>> f() == (2j, range(3), bytearray(b'z'), 3**99, -(2**70), 1) and f()[-1] is True

def f(): return float('nan'), float('-inf'), -0.0
>>> str(f()) == '(nan, -inf, -0.0)'

from fractions import Fraction
def f(): return Fraction(1, 3)
>>> f() * 3 == 1

from decimal import Decimal
def f(): return Decimal('0.10')
>>> str(f()) == '0.10'

from collections import Counter, namedtuple
def f(): return Counter('aab'), namedtuple('P', 'x y')(1, 2)
>>> f() == ({'a': 2, 'b': 1}, (1, 2))

def f(kind): return kind('7')
>>> f(int) == 7

def f(*, a, b=2): return [a, b]
>>> f(a='\\ud800') == ['\\ud800', 2]

def f(): yield from 'ab'
>>> list(f()) == ['a', 'b']

class Node:
    def __init__(self, value): self.value, self.next = value, None
def total(node): return node.value + total(node.next) if node else 0
>>> [n := Node(3), setattr(n, 'next', Node(4)), total(n)][2] == 7 and n.next.value == 4

class Deck:
    def __len__(self): return 52
    def __getitem__(self, i): return i * 2
    def __str__(self): return 'deck'
>>> (len(Deck()), Deck()[4], str(Deck())) == (52, 8, 'deck')

def sum(a, b): return a * b
>>> sum(3, 4) == 12

from dataclasses import dataclass
@dataclass
class P: x: int
def f(): return P(3)
>>> f().x == 3

def f(): return list({'a', 'b', 'c', 'd', 'e', 'f'})
>>> f() == list({'a', 'b', 'c', 'd', 'e', 'f'})
"""


@pytest.mark.parametrize("case", VALUES.strip().split("\n\n"))
def test_values_travel(case):
    code, _, test = case.partition("\n>>> ")
    verdict = judge(code, {"tests": [f"assert {test}"]})
    assert verdict.status is Status.RIGHT, verdict.detail


def test_exceptions_travel():
    code = "def f(x):\n    raise KeyError('k') if x else OwnError\nclass OwnError(Exception): pass"
    expects = "try:\n    f({})\n    assert False\nexcept {}:\n    pass"
    for argument, expected, status in [(1, "KeyError", "right"), (1, "ValueError", "wrong"), (0, "Exception", "right")]:
        assert judge(code, {"tests": [expects.format(argument, expected)]}).status == status


# Programs


def test_a_program_is_judged_by_its_output():
    assert judge("a, b = map(int, input().split())\nprint(a + b)", SUMS).status is Status.RIGHT
    assert judge("print(3)", SUMS).detail == "test 2: line 1 is '3', not '9'"
    crash = judge("print(3)\n1 / 0", SUMS)
    assert (crash.status, crash.reward) == (Status.WRONG, 0.0)
    assert crash.detail == "test 1: exit status 1 (ZeroDivisionError: division by zero)"


def test_a_program_runs_as_main_and_reads_all_of_standard_input():
    code = "import sys\nif __name__ == '__main__':\n    print(sum(map(int, sys.stdin.read().split())))"
    assert judge(code, SUMS).status is Status.RIGHT


ENDS = """
wrong: import sys; sys.exit(0)
wrong: import os; os._exit(0)
wrong: print('All tests passed', flush=True); raise SystemExit(0)
wrong: print(3); raise SystemExit(1)
fault: print(3); raise KeyboardInterrupt
fault: print(3); import ctypes; ctypes.string_at(0)
wrong: while True: print('3' * 4096)
timeout: while True: pass
timeout: import time; print(3, flush=True); time.sleep(99)
wrong: import os, time; print(3, flush=True); os._exit(0) if os.fork() else time.sleep(99)
wrong: import os; [os.write(fd, b'3') for fd in (1, 2)]; [os.write(fd, b'started') for fd in range(3, 64)]
wrong: import os, sys; print(3); print(len(sys.argv), open('/tmp/x', 'w').write('9'), flush=True)
"""


@pytest.mark.parametrize("case", ENDS.strip().splitlines())
def test_a_program_is_not_paid_for_how_it_ends(case):
    status, _, code = case.partition(": ")
    verdict = judge(code, SUMS)
    assert (str(verdict.status), verdict.reward) == (status, 0.0), verdict.detail


@pytest.mark.parametrize(
    ("output", "expected", "problem"),
    [
        ("a \nb\n\n", "a\nb", ""),
        ("a\r\nb", "a\nb\n", ""),
        ("", "", ""),
        ("\na", "a", "line 1 is '', not 'a'"),
        (" a", "a", "line 1 is ' a', not 'a'"),
        ("a\nb\nc", "a\nb", "more than 2 lines"),
        ("a", "a\nb", "fewer than 2 lines"),
        ("1.0", "1", "line 1 is '1.0', not '1'"),
    ],
)
def test_white_space_at_the_ends_of_lines_is_no_difference(output, expected, problem):
    verdict = judge(f"import sys\nsys.stdout.write({output!r})", {"stdin_stdout": [("", expected)]})
    assert verdict.status is (Status.WRONG if problem else Status.RIGHT)
    assert problem in verdict.detail


def test_a_program_finds_no_files_open_but_its_three_streams():
    code = """
import os
def is_open(fd):
    try: return bool(os.fstat(fd))
    except OSError: return False
print(*filter(is_open, range(1024)))
"""
    assert judge(code, {"stdin_stdout": [("", "0 1 2")]}).status is Status.RIGHT


# Whose fault it is


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({}, "here: none"),
        ({**ADD, "check": "x"}, "here: tests, check"),
        ({"test": ["assert add(1, 1) == 2"]}, "unknown key 'test'"),
        ({"tests": "assert add(1, 1) == 2"}, "not a list"),
        ({"tests": []}, "here: none"),
        ({"check": "def check(candidate): pass"}, "needs entry_point"),
        ({**SUMS, "prompt": "x = 1", "entry_point": "x"}, "makes no use of entry_point"),
        ({"stdin_stdout": [("1", 2)]}, "pairs of texts"),
        ({"stdin_stdout": [5]}, "pairs of texts"),
        (None, "a mapping or CodeTests, not NoneType"),
        ({"tests": ["assert add(1, 1) =="]}, "do not compile"),
        ({"tests": ["assert add(1, 1) == 2"], "setup": "import no_such_module"}, "No module named"),
        ({"tests": ["assert True"]}, "no name of the completion's"),
        ({"check": "def check(candidate): pass", "entry_point": "add"}, "without a call"),
        ({"check": "def test(candidate): pass", "entry_point": "add"}, "no function check"),
        ({"check": "1 / 0", "entry_point": "add"}, "ZeroDivisionError"),
        ({"tests": ["assert add(lambda: 1, 1) == 2"]}, "only plain data can be passed"),
    ],
)
def test_unusable_tests_are_bad_gold(answer, reason):
    verdict = judge(GOOD, answer)
    assert (verdict.status, verdict.reward) == (Status.BAD_GOLD, None)
    assert reason in verdict.detail


def test_a_time_out_of_the_gold_code_alone_is_not_scored():
    verdict = judge(GOOD, {"check": "while True: pass", "entry_point": "add"}, limits=Limits(wall_seconds=1.0))
    assert (verdict.status, verdict.reward) == (Status.FAULT, None)


def test_a_test_that_the_completion_sends_into_a_loop_scores_zero():
    answer = {"tests": ["for i in range(f()): pass"]}
    verdict = judge("def f():\n    return 10**18", answer, limits=Limits(wall_seconds=1.5))
    assert (verdict.status, verdict.reward) == (Status.TIMEOUT, 0.0)


def test_a_sandbox_that_does_not_start_is_not_scored(monkeypatch):
    require()
    monkeypatch.setattr(launch, "_command", lambda tmp_bytes: ("/bin/false",))
    for answer in (ADD, SUMS):
        verdict = judge(GOOD, answer)
        assert (verdict.status, verdict.reward) == (Status.FAULT, None)


def test_no_processes_left_on_the_machine_is_not_scored(monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    require()
    monkeypatch.setattr(launch.subprocess, "Popen", refuse)
    assert (judge(GOOD, ADD).status, judge(GOOD, ADD).reward) == (Status.FAULT, None)


@pytest.fixture
def fresh():
    """Forgets that this machine has been found fit, before and after."""
    for cache in (require, launch._command):
        cache.cache_clear()
    yield
    for cache in (require, launch._command):
        cache.cache_clear()


def test_without_bubblewrap_the_error_says_what_to_install(monkeypatch, fresh):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        judge(GOOD, ADD)


def test_where_bubblewrap_is_refused_the_error_says_what_to_allow(monkeypatch, fresh, tmp_path):
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxUnavailable, match=r"(?s)exit status .*unprivileged user namespaces"):
        judge(GOOD, ADD)


# Extraction


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("~~~~py\nx = '```'\n~~~~", "x = '```'\n"),
        ("```python\r\nx = 1\r\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nbetter:\n```Python\nx = 2\n```\nprints\n```text\n2\n```", "x = 2\n"),
        ("```python\nx = 1", "x = 1"),
        ("```python title='a'\nx = 1\n`````  \n", "x = 1\n"),
        ("<think>```python\nx = 1\n```</think>```python\nx = 2\n```", "x = 2\n"),
        ("thought</think><answer>```python\nx = 3\n```</answer> thanks", "x = 3\n"),
        ("<answer>x = 4</answer>", "x = 4"),
        ("    return 5\n", "    return 5\n"),
        ("<think>```python\nx = 1\n```", None),
        ("```bash\nls\n```", None),
        ("```python\n\n```", None),
        ("  \n", None),
        ("", None),
    ],
)
def test_extraction(completion, code):
    assert extract_code(completion) == code


@pytest.mark.parametrize(
    "unit", ["`", "~", "```", "```\n", "~~~a", "``` ", "```a\n~~~\n", "<answer>", "</think>", "def "]
)
def test_extraction_takes_linear_time(unit):
    start = time.monotonic()
    extract_code(unit * (1_000_000 // len(unit)))
    assert time.monotonic() - start < 2


def test_code_that_is_not_text_is_judged_all_the_same():
    assert judge("x = '\ud800'\n" + GOOD, ADD).reward == 0.0
    assert judge("def add(a, b):\n    return '\ud800' + '\U0001f343'", ADD).reward == 0.0


def test_a_constant_can_be_tested():
    assert judge("answer = 42", {"tests": ["assert answer == 42"]}).status is Status.RIGHT
    assert judge("", {"tests": ["assert answer == 42"]}).reward == 0.0


def test_no_code_is_no_answer():
    verdict = verify(completion="<think>hm", answer=ADD)
    assert (verdict.status, verdict.reward) == (Status.NO_ANSWER, 0.0)


# Many


def test_many_verdicts_come_in_order():
    codes = [GOOD, HALF, "import time\ndef add(a, b):\n    time.sleep(99)", GOOD, "import os\nos._exit(0)", HALF]
    completions = [f"```python\n{code}\n```" for code in codes]
    verdicts = verify_many(completions=completions, answers=[ADD] * 6, limits=SHORT, workers=3)
    assert [str(verdict.status) for verdict in verdicts] == ["right", "wrong", "timeout", "right", "fault", "wrong"]
    assert [verdict.extracted.strip() for verdict in verdicts] == [code.strip() for code in codes]
    assert verify_many(completions=[], answers=[]) == []
    with pytest.raises(ValueError, match="2 completions and 1 answers"):
        verify_many(completions=["a", "b"], answers=[ADD])


def test_verdicts_from_threads_and_event_loops_leave_nothing_open():
    judge(GOOD, ADD)
    before = sorted(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(lambda code: judge(code, ADD).status, [GOOD, HALF] * 4))
    assert statuses == [Status.RIGHT, Status.WRONG] * 4

    async def both():
        return await asyncio.gather(*(asyncio.to_thread(judge, code, ADD) for code in (GOOD, HALF)))

    assert [verdict.status for verdict in asyncio.run(both())] == [Status.RIGHT, Status.WRONG]
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_wall_clock_is_kept():
    start = time.monotonic()
    verdict = judge("import time\ndef add(a, b):\n    time.sleep(99)", ADD, limits=Limits(wall_seconds=0.7))
    assert verdict.reward in (0.0, None)  # None where a busy machine has not even started it by then
    assert time.monotonic() - start < 5


def test_tests_are_a_mapping_or_a_dataclass():
    assert CodeTests.read(ADD) == CodeTests(tests=tuple(ADD["tests"]))
    assert judge(GOOD, CodeTests(tests=tuple(ADD["tests"]))).status is Status.RIGHT
