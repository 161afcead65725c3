"""Forward and backward of a run's own groups: on trees, and as rows.

    python benchmarks/update_of_run.py RUN [--rounds 5] [--steps 3] [--out FILE]

Takes the groups of the last steps of a run folder and the model it saved. Both sides compute the same gradient, with
logits at predicting positions only; the rows are length-sorted micro-batches at the best of four sizes. Sides take
turns inside a round, so a machine that slows down slows both; quote the median ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from phloem.analysis.runs import group_of
from phloem.config import ModelConfig
from phloem.forward import logprobs, pack, prepare
from phloem.forward.plan import ModelSize, flop_ceiling
from phloem.forward.rows_batched import row_batches
from phloem.models import load_model
from phloem.settings import load_config
from phloem.tree import Group, PrefixTree

ROW_SIZES = (256, 512, 1024, 2048)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()

    config = load_config(wanted.run / "config.yaml")
    model, _ = load_model(ModelConfig(path=str(wanted.run / "model"), dtype=config.model.dtype))
    engine = prepare(model, config.model.attention)
    rows = []
    for step, groups in last_steps(wanted.run / "rollouts.jsonl", wanted.steps).items():
        rows.append({"step": step, "engine": engine, **compare(model, groups, config.model.autocast, wanted.rounds)})
        print(json.dumps(rows[-1]))
    if wanted.out:
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        wanted.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def last_steps(path: Path, count: int) -> dict[int, list[Group]]:
    """The logged groups of the last steps, by step."""
    steps: dict[int, list[Group]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        steps.setdefault(record["step"], []).append(group_of(record))
    return {step: steps[step] for step in sorted(steps)[-count:]}


def compare(model: torch.nn.Module, groups: list[Group], autocast: bool, rounds: int) -> dict[str, object]:
    """Seconds of both sides over interleaved rounds, and what the ratio could be."""
    trees = [PrefixTree.from_group(group) for group in groups]

    def on_trees() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = logprobs(model, pack(trees))
        found.logprobs_E.sum().backward()
        model.zero_grad(set_to_none=True)

    def as_rows(max_tokens: int) -> Callable[[], None]:
        def run() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                for batch in row_batches(model, groups, max_tokens=max_tokens):
                    with torch.autocast("cpu", enabled=False):
                        batch.logprobs_E.sum().backward()
            model.zero_grad(set_to_none=True)

        return run

    best = min(ROW_SIZES, key=lambda size: min(seconds(as_rows(size)) for _ in range(2)))
    seconds(on_trees)
    pairs = [(seconds(on_trees), seconds(as_rows(best))) for _ in range(rounds)]
    row_tokens = sum(len(g.prompt) * g.group_size + len(t.row_index) for g, t in zip(groups, trees, strict=True))
    distinct = sum(map(len, trees))
    return {
        "dtype": "bfloat16 autocast" if autocast else "float32",
        "row_tokens": row_tokens,
        "distinct_tokens": distinct,
        "token_ratio": round(row_tokens / distinct, 3),
        "flop_ceiling": round(flop_ceiling(ModelSize.of(model), trees), 3),
        "tree_seconds": round(median(t for t, _ in pairs), 3),
        "row_seconds": round(median(r for _, r in pairs), 3),
        "speedup_over_rows": round(median(r / t for t, r in pairs), 3),
        "row_batch_tokens": best,
        "rounds": rounds,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
    }


def seconds(work: Callable[[], None]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


if __name__ == "__main__":
    main()
