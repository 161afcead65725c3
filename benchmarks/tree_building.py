"""Row tokens per second of building trees, and of the lambda weights with it, on one core.

    python benchmarks/tree_building.py

Known structure: a K x M group of segments (`PrefixTree.from_group`); plain rows: whole completions, half of them with
half of another's tokens (`PrefixTree.from_rollouts`). Both from arrays of token ids, groups and their checks included.
Lambda weights: 1 / count of every token, put together with a reward's advantage by `credit.assign`. Medians of
repeated calls; results in `benchmarks/results/tree_building.json`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from measure import RESULTS, load, machine, merge_rows
from shapes import UNEVEN, group_of_shape

from phloem import credit, presets
from phloem.forward.allocator import keep_freed_memory
from phloem.tree import Group, PrefixTree, Segment

VOCABULARY = 49152
KNOWN = ("50/250/50 4x4", "50/1000/50 4x4", "50/250/16 4x16", "50/1000/100 16x16", "200/4000/500 4x8", UNEVEN)
PLAIN = ((8, 250), (16, 1000), (16, 8000), (64, 4000), (256, 512), (1024, 1024))
RULE = presets.get("lambda-grpo")
SECONDS = 0.5


def main() -> None:
    keep_freed_memory()  # as in a run, where `forward.prepare` does it
    rows = []
    for shape in KNOWN:
        group = group_of_shape(shape, VOCABULARY)
        parts = [(s.tokens, s.parent, s.reward) for s in group.segments]
        rows.append(rates("known structure", shape, lambda g=group, p=parts: from_parts(g.prompt, p)))
    for size, length in PLAIN:
        prompt, completions, rewards = plain(size, length)
        rows.append(
            rates(
                "plain rows",
                f"{size} rows of {length}",
                lambda p=prompt, c=completions, r=rewards: Group.from_rollouts(p, c, r),
            )
        )
    for row in rows:
        print(row)
    merge_rows(RESULTS / "tree_building.json", rows, ("kind", "shape"))


def from_parts(prompt: np.ndarray, parts: list[tuple[np.ndarray, int | None, float | None]]) -> Group:
    return Group(prompt, tuple(Segment(tokens, parent, reward=reward) for tokens, parent, reward in parts))


def plain(size: int, length: int) -> tuple[np.ndarray, list[np.ndarray], list[float]]:
    ids = np.random.default_rng(0)
    rows = [ids.integers(0, VOCABULARY, length) for _ in range(size)]
    for i in range(1, size, 2):
        rows[i][: length // 2] = rows[i - 1][: length // 2]
    return ids.integers(0, VOCABULARY, 50), rows, [float(i % 2) for i in range(size)]


def rates(kind: str, shape: str, make: Callable[[], Group]) -> dict[str, Any]:
    """Row tokens (prompt and completion of each rollout) per second."""
    tree = PrefixTree.from_group(make())
    tokens = tree.group.group_size * tree.prompt_length + len(tree.row_index)
    build = repeated(lambda: PrefixTree.from_group(make()))
    weigh = repeated(lambda: credit.assign(tree.group, RULE, None, tree))
    return {
        "kind": kind,
        "shape": shape,
        "row_tokens": tokens,
        "distinct_tokens": len(tree),
        "tree_tokens_per_second": round(tokens / build),
        "credit_tokens_per_second": round(tokens / weigh),
        "both_tokens_per_second": round(tokens / (build + weigh)),
        "load": load(),
        "machine": machine(),
    }


def repeated(work: Callable[[], Any]) -> float:
    """Median seconds of calls over half a second."""
    work()
    taken: list[float] = []
    while sum(taken) < SECONDS or len(taken) < 5:
        start = perf_counter()
        work()
        taken.append(perf_counter() - start)
    return median(taken)


if __name__ == "__main__":
    main()
