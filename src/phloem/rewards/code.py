"""Reward for programs: `verify(completion=..., answer=...)` runs the tests in a sandbox and returns a `Verdict`.

Three kinds of tests, described by `CodeTests` or by a mapping with its field names:

- `{"tests": ["assert f(2) == 4", ...], "setup": "..."}`, as in MBPP
- `{"check": "def check(candidate): ...", "entry_point": "f", "prompt": "def f(x): ..."}`, as in HumanEval
- `{"stdin_stdout": [{"stdin": "1 2\\n", "stdout": "3\\n"}, ...]}`, for whole programs

Tests that call functions run in a sandbox of their own and reach the completion's code in another one through a pipe of
plain data, so the completion can neither read nor change what judges it. `docs/rewards-code.md` has the rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from phloem.rewards import sandbox
from phloem.rewards.code_names import names_of
from phloem.rewards.code_tests import CodeTests
from phloem.rewards.sandbox import Limits
from phloem.rewards.verdict import Verdict

__all__ = ["CodeTests", "extract_code", "verify", "verify_many"]

_DEFAULT_LIMITS = Limits()
_FENCE = re.compile(r"^(?P<fence>`{3,}+|~{3,}+)(?P<info>[^\n`]*+)\n", re.MULTILINE)  # possessive: linear in any text
_PYTHON = ("", "py", "py3", "python", "python3")


def extract_code(completion: str) -> str | None:
    """The program a completion offers, or None.

    - Thinking does not count: only what follows the last `</think>` is looked at, and a thought that is still open has
      no program.
    - There, the last complete `<answer>` element, else everything.
    - There, the last fenced block that says `python` or no language; the end of the text closes an open one.
    - Without any fence, the text as it is: the continuation of a prompt, or a bare program.
    """
    _, _, text = completion.replace("\r\n", "\n").rpartition("</think>")
    if "<think>" in text:
        return None
    if "</answer>" in text:
        before, _, _ = text.rpartition("</answer>")
        text = before.rpartition("<answer>")[2]
    blocks = _blocks(text)
    if blocks is not None:
        python = [code for language, code in blocks if language.lower() in _PYTHON]
        text = python[-1] if python else ""
    return text if text.strip() else None


def _blocks(text: str) -> list[tuple[str, str]] | None:
    """(language, code) of each fenced block; None if there is no fence at all."""
    blocks: list[tuple[str, str]] = []
    position = 0
    while opening := _FENCE.search(text, position):
        character, length = opening["fence"][0], len(opening["fence"])
        closing = re.compile(rf"^{character}{{{length},}}+[ \t]*$", re.MULTILINE).search(text, opening.end())
        language = opening["info"].strip().partition(" ")[0]
        blocks.append((language, text[opening.end() : closing.start() if closing else len(text)]))
        if closing is None:
            break
        position = closing.end()
    return blocks or None


def verify(
    *,
    completion: str,
    answer: CodeTests | Mapping[str, Any],
    partial: bool = False,
    limits: Limits = _DEFAULT_LIMITS,
) -> Verdict:
    """Runs a completion's code against tests; reward 1 if all pass.

    With `partial` a completion that fails some tests is WRONG with the share it passed as its reward; without, the
    first failure ends the run. A time-out (TIMEOUT) or the end of the process before the tests' (FAULT) scores 0 in
    both cases. Unusable tests are BAD_GOLD, and what the machine or the tests break by themselves is not scored.
    `limits` hold for all tests together, or for each pair of `stdin_stdout`.

    Raises sandbox.SandboxUnavailable: bubblewrap is missing or cannot work here. May be called from any thread.
    """
    try:
        tests = CodeTests.read(answer)
    except (ValueError, TypeError) as error:
        return Verdict.bad_gold(str(error))
    code = extract_code(completion)
    if code is None:
        return Verdict.no_answer("no code in the completion")
    judge = _judge_program if tests.stdin_stdout else _judge_functions
    try:
        sandbox.require()
        return judge(code, tests, partial, limits)
    except OSError as error:
        return Verdict.fault(f"the sandbox could not be started: {error}", by_completion=False, extracted=code)


def verify_many(
    *,
    completions: Sequence[str],
    answers: Sequence[CodeTests | Mapping[str, Any]],
    partial: bool = False,
    limits: Limits = _DEFAULT_LIMITS,
    workers: int | None = None,
) -> list[Verdict]:
    """`verify` for each pair, in order, at most `workers` (default: the processors available) at a time.

    More workers than processors make time-outs a matter of luck. Raises ValueError if the lengths differ.
    """
    if len(completions) != len(answers):
        raise ValueError(f"{len(completions)} completions and {len(answers)} answers")
    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        return list(
            pool.map(
                lambda pair: verify(completion=pair[0], answer=pair[1], partial=partial, limits=limits),
                zip(completions, answers, strict=True),
            )
        )


def _score(passed: int, total: int, partial: bool, code: str, detail: str) -> Verdict:
    if passed == total:
        return Verdict.right(code, detail=f"{total} of {total} tests passed")
    reward = passed / total if partial else 0.0
    return Verdict.wrong(code, reward=reward, detail=detail or f"{passed} of {total} tests passed")


def _judge_functions(code: str, tests: CodeTests, partial: bool, limits: Limits) -> Verdict:
    try:
        names = names_of(tests.tests, tests.setup, tests.prompt, tests.entry_point)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Verdict.bad_gold(f"the tests do not compile: {error}", extracted=code)
    spec = {"partial": partial, **_plain(tests), **names._asdict()}
    if not names.names:
        return Verdict.bad_gold("the tests use no name of the completion's", extracted=code)
    told = sandbox.talk(_program(code, tests), spec, limits)
    report = told.report
    if report is not None and report.outcome == "gold":
        return Verdict.bad_gold(report.detail, extracted=code)
    if not told.started:
        return Verdict.fault(f"the tests did not begin: {told.ends}", by_completion=False, extracted=code)
    if told.out_of_time:
        return Verdict.timeout(_after(limits), by_completion=True, extracted=code)
    if report is None or report.outcome == "gone":
        return Verdict.fault(f"ended before its tests did: {told.ends}", by_completion=True, extracted=code)
    total = len(tests.tests) or 1
    if tests.check and report.passed == total and not report.calls:
        return Verdict.bad_gold("check(candidate) passed without a call of the candidate", extracted=code)
    return _score(report.passed, total, partial, code, report.detail)


def _program(code: str, tests: CodeTests) -> dict[str, str]:
    """The completion's program: code of its own after the prompt, or the prompt continued.

    It is code of its own if it defines the entry point without indentation. A regular expression decides: a hostile
    text can crash Python's parser, which therefore sees it in the sandbox only.
    """
    name = re.escape(tests.entry_point)
    defines = rf"^(?:(?:async[ \t]+)?def[ \t]+{name}[ \t]*[(\[]|class[ \t]+{name}\b|{name}[ \t]*[=:])"
    if not tests.prompt or re.search(defines, code, re.MULTILINE):
        return {"prompt": tests.prompt, "code": code}
    gap = "" if tests.prompt.endswith("\n") or code.startswith("\n") else "\n"
    return {"prompt": "", "code": tests.prompt + gap + code}


def _plain(tests: CodeTests) -> dict[str, Any]:
    return {name: getattr(tests, name) for name in ("tests", "setup", "check", "entry_point", "prompt")}


def _after(limits: Limits) -> str:
    return f"out of time: {limits.wall_seconds:g} s on the clock, {limits.cpu_seconds} s of processor time"


def _judge_program(code: str, tests: CodeTests, partial: bool, limits: Limits) -> Verdict:
    passed, first = 0, ""
    for number, (stdin, expected) in enumerate(tests.stdin_stdout, start=1):
        ended = sandbox.run(code, stdin.encode("utf-8", "surrogatepass"), limits)
        if not ended.started:
            return Verdict.fault(f"test {number} did not begin: {ended.stderr}", by_completion=False, extracted=code)
        if ended.out_of_time:
            return Verdict.timeout(f"test {number}: {_after(limits)}", by_completion=True, extracted=code)
        if ended.exit_status is not None and ended.exit_status >= 128:
            detail = f"test {number}: killed by signal {ended.exit_status - 128}"
            return Verdict.fault(detail, by_completion=True, extracted=code)
        problem = _difference(ended, expected)
        passed += not problem
        first = first or (f"test {number}: {problem}" if problem else "")
        if problem and not partial:
            break
    return _score(passed, len(tests.stdin_stdout), partial, code, first)


def _difference(ended: sandbox.Ended, expected: str) -> str:
    """What is wrong with a program's end, or nothing."""
    if ended.exit_status != 0:
        last = ended.stderr.strip().rpartition("\n")[2]
        return f"exit status {ended.exit_status}" + (f" ({last})" if last else "")
    wanted = expected.rstrip().split("\n")
    got = ended.stdout.decode("utf-8", "replace").rstrip().split("\n", len(wanted))  # millions of lines stay one text
    for number, (left, right) in enumerate(zip(got, wanted, strict=False), start=1):
        if left.rstrip() != right.rstrip():
            return f"line {number} is {left.rstrip()[:80]!r}, not {right.rstrip()[:80]!r}"
    if len(got) == len(wanted):
        return ""
    return f"{'more' if len(got) > len(wanted) else 'fewer'} than {len(wanted)} lines"
