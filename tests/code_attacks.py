"""Programs that try to be paid for `add` without adding, or to reach out of the sandbox, from `rewards/attacks/*.txt`.

There, `### name` starts a program. `### against` with tests of its own (split by `---`) or with the name of one of the
answers here says what judges it; else it is ADD. `@MARK@` is replaced by a word that must never turn up outside,
`@PORT@` by a port where the test listens.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "rewards" / "attacks"
ADD = {"tests": ["assert add(2, 3) == 5", "assert add(-1, 1) == 0", "assert add(20, 22) == 42"]}
CHECK = {
    "prompt": "def add(a, b):\n    '''The sum.'''\n",
    "check": "def check(candidate):\n    for a in range(5):\n        assert candidate(a, 2) == a + 2\n",
    "entry_point": "add",
}
POLITE = {
    "check": "def check(candidate):\n    if callable(candidate):\n        assert candidate(1, 1) == 2\n",
    "entry_point": "add",
}
ZERO = {
    "prompt": "def poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\ndef find_zero(xs):\n    'Root.'\n",
    "check": "def check(candidate):\n    assert abs(poly([1, 2], candidate([1, 2]))) < 1e-4",
    "entry_point": "find_zero",
}

_ANSWERS = {"check": CHECK, "polite check": POLITE, "zero": ZERO}


class Attack(NamedTuple):
    name: str
    code: str
    answer: dict = ADD


def _read() -> list[Attack]:
    attacks = [
        Attack("brackets", "(" * 200_000),
        Attack("minus-signs", "x = " + "-" * 500_000 + "1"),
        Attack("null-bytes", "x = '\0'\ndef add(a, b):\n    return a + b"),
    ]
    for path in sorted(FOLDER.glob("*.txt")):
        for section in path.read_text(encoding="utf-8").split("\n### "):
            head, _, code = section.removeprefix("### ").partition("\n")
            if head.startswith("against "):
                attacks[-1] = attacks[-1]._replace(answer=_ANSWERS[head.removeprefix("against ")])
            elif head == "against":
                attacks[-1] = attacks[-1]._replace(answer={"tests": code.strip().split("\n---\n")})
            else:
                attacks.append(Attack(head, code))
    return attacks


ATTACKS = _read()
