"""Verdicts per second: plain numbers, expressions that need the worker processes, and a hostile batch.

    python benchmarks/verify_speed.py [seconds per measurement]

Plain numbers run in this process alone. Expressions are all different, so that no verdict is reused. Times are wall
clock; on a shared machine they are a lower bound of the speed.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from collections.abc import Callable

from phloem.rewards.math import verify_many
from phloem.rewards.verdict import Status

BATCH = 256
HOSTILE = 512
REASONING = "We add the parts and simplify step by step. " * 20


def completion(answer: str) -> str:
    return f"{REASONING}Therefore the answer is $\\boxed{{{answer}}}$."


def plain(rng: random.Random) -> tuple[str, str]:
    """A whole number, decimal or fraction with its right answer in another spelling, or a wrong one."""
    top, bottom = rng.randint(-9999, 9999), rng.randint(2, 99)
    gold, answer = rng.choice([
        (str(top), f"{top}.0"), (f"{top / 4}", str(top / 4)), (f"{abs(top)}", f"{abs(top):,}"),
        (f"\\frac{{{top}}}{{{bottom}}}", f"{3 * top}/{3 * bottom}"),
    ])  # fmt: skip
    return gold, answer if rng.random() < 0.5 else str(rng.randint(10_000, 20_000))


def expression(rng: random.Random) -> tuple[str, str]:
    """An expression and the same one written differently, or another one."""
    a, b, wrong = rng.randint(2, 10**6), rng.randint(2, 10**6), rng.random() < 0.5
    return rng.choice([
        (f"(x+{a})(x-{b})", f"x^2+({a - b + wrong})x-{a * b}"),
        (f"\\sqrt{{{a * a * b}}}", f"{a + wrong}\\sqrt{{{b}}}"),
        (f"\\frac{{\\pi}}{{{a}}}+\\ln {b}", f"\\ln {b + wrong}+\\frac{{2\\pi}}{{{2 * a}}}"),
        (f"e^{{{a}t}}\\sin {b}t", f"\\sin({b + wrong}t)e^{{{a}t}}"),
    ])  # fmt: skip


def hostile(rng: random.Random) -> tuple[str, str]:
    """An answer made to hang or to fill the memory of whoever evaluates it."""
    n = rng.randint(2, 10**6)
    answer = rng.choice([
        "^{".join([str(n)] * 30) + "}" * 29, f"{n}" + "!" * 30, "(" * 200_000 + str(n), "{" * 5000 + "1" + "}" * 5000,
        f"({10**9 + n})!", f"{n}^{{{10**9 + n}}}", f"\\sin({n}^{{10^{{{n}}}}})", f"\\sum_{{k=1}}^{{10^{{{n}}}}} k!",
        f"\\binom{{10^{{{n}}}}}{{10^{{{n - 1}}}}}", f"\\int_0^{{{n}}} x^{{x^{{x}}}} dx", "\\frac{" * 3000 + str(n),
        "+".join(f"\\sin {n + k}" for k in range(150)), f"(10^5-\\sqrt{{{n}}})!", "-" * 1900 + str(n),
    ])  # fmt: skip
    return rng.choice(["7", "\\sqrt{2}", "x^2+1", "(0,1]", "\\{1,2\\}"]), answer


def rate(make: Callable[[random.Random], tuple[str, str]], seconds: float) -> float:
    """Verdicts per second over batches of fresh samples."""
    rng, done, began = random.Random(0), 0, time.perf_counter()
    spent = 0.0
    while time.perf_counter() - began < seconds:
        pairs = [make(rng) for _ in range(BATCH)]
        golds, completions = [gold for gold, _ in pairs], [completion(answer) for _, answer in pairs]
        start = time.perf_counter()
        verdicts = verify_many(completions, golds)
        spent += time.perf_counter() - start
        if not any(v.status is Status.RIGHT for v in verdicts) or any(v.reward is None for v in verdicts):
            raise RuntimeError("the benchmark's own answers were not judged")
        done += BATCH
    return done / spent


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    verify_many([completion("x+1")] * 2, ["1+x", "x+1+0"])  # start the workers
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    print(f"plain numbers: {rate(plain, seconds):,.0f} verdicts/s (this process only)")
    print(f"expressions:   {rate(expression, seconds):,.0f} verdicts/s (worker processes)")
    pairs = [hostile(random.Random(k)) for k in range(HOSTILE)]
    began = time.perf_counter()
    verdicts = verify_many([completion(answer) for _, answer in pairs], [gold for gold, _ in pairs])
    took = time.perf_counter() - began
    if any(v.status is Status.RIGHT for v in verdicts):
        raise RuntimeError("a hostile answer was paid")
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    timeouts = sum(v.status is Status.TIMEOUT for v in verdicts)
    print(f"hostile batch: {HOSTILE} in {took:.1f} s, {timeouts} time-outs, peak memory of a process {peak:.0f} MiB")


if __name__ == "__main__":
    main()
