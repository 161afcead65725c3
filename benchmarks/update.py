"""Forward and backward of one group: on its tree, as rows, and by TRL's GRPOTrainer, on the same rollouts.

    python benchmarks/update.py [--shape "50/250/50 4x4"] [--dtype float32] [--rounds 5] [--trl-rounds 5]

No optimiser step. Sides take turns inside a round, so that a machine that slows down slows all; ratios are those of a
round, and their median is quoted. Rows and TRL run at the best of several micro-batch sizes. Needs the extra `trl`
(in an environment of its own), unless `--trl-rounds 0`. Results are merged into `benchmarks/results/update.json`; the
table in docs/speed.md is written from them by `docs/write_speed.py`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from measure import RESULTS, LiveMemory, interval, load, machine, merge_rows, peak_resident, seconds
from shapes import SHAPES, group_of_shape
from sides import DTYPES, Side, as_rows, by_trl, on_trees, trl_trainer

from phloem.config import ModelConfig
from phloem.forward import prepare
from phloem.forward.plan import ModelSize, flop_ceiling, tree_flops
from phloem.forward.split import causal_lm
from phloem.models import load_model
from phloem.tree import Group, PrefixTree

# Rows of a micro-batch that are tried, and on how many of the group's rollouts.
SIZES, TRIED_ON = (1, 2, 4, 8), 8
# Layers of the model that memory is measured on, so that all rows of the largest shape fit.
LAYERS = 4


@dataclass(frozen=True)
class Sides:
    """The two models, and how to make each side for some group."""

    model: Any
    tree: Callable[[Group], Side]
    rows: Callable[[Group, int], Side]
    trl: Callable[[Group, int], Side] | None
    trl_model: Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", help=f"P/T/A KxM; default: {'; '.join(SHAPES)}")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default: all")
    parser.add_argument("--model", default=ModelConfig().path, help="name, folder or hub id")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trl-rounds", type=int, default=5)
    wanted = parser.parse_args()
    for dtype in wanted.dtype or DTYPES:
        with tempfile.TemporaryDirectory() as folder:
            sides = make_sides(wanted.model, dtype, folder if wanted.trl_rounds else None)
            for shape in wanted.shape or SHAPES:
                group = group_of_shape(shape, sides.model.config.vocab_size)
                row = {"shape": shape, "dtype": dtype, **compare(sides, group, wanted.rounds, wanted.trl_rounds)}
                row.update(memory(sides.model, group, dtype), machine=machine())
                merge_rows(RESULTS / "update.json", [row], ("shape", "dtype"))
                print({key: value for key, value in row.items() if key != "rounds"}, flush=True)


def make_sides(path: str, dtype: str, trl_folder: str | None) -> Sides:
    """Loads the model (twice, if TRL gets one) and prepares it."""
    config = ModelConfig(path=path, dtype="bfloat16" if dtype == "bfloat16" else "float32")
    model, tokenizer = load_model(config)
    prepare(model, "paths", announce=lambda line: None)
    model.train()
    trl_model = trainer = None
    if trl_folder is not None:
        trl_model, _ = load_model(config)
        trainer = trl_trainer(trl_model.train(), tokenizer, trl_folder, dtype)
    return Sides(
        model,
        lambda group: on_trees(model, group, dtype),
        lambda group, count: as_rows(model, group, dtype, count * longest(group)),
        None if trainer is None else lambda group, count: by_trl(trainer, group, count),
        trl_model,
    )


def compare(sides: Sides, group: Group, rounds: int, trl_rounds: int) -> dict[str, Any]:
    """Times of all sides over interleaved rounds, and what they could be."""
    tree = PrefixTree.from_group(group)
    on_tree = sides.tree(group)
    row_count, on_rows = best(sides.rows, sides.model, group)
    trl_count, on_trl = best(sides.trl, sides.trl_model, group) if sides.trl and trl_rounds else (None, None)
    differences = {"rows": difference(sides.model, on_tree, sides.model, on_rows)}
    if on_trl is not None:
        differences["trl"] = difference(sides.model, on_tree, sides.trl_model, on_trl)
    found: list[dict[str, tuple[float, float]]] = []
    loads = [load()]
    for i in range(rounds):
        found.append({"tree": timed(sides.model, on_tree), "rows": timed(sides.model, on_rows)})
        if on_trl is not None and i < trl_rounds:
            found[-1]["trl"] = timed(sides.trl_model, on_trl)
        loads.append(load())

    def ratios(above: str, below: str = "tree", cpu: bool = False) -> list[float]:
        return [r[above][cpu] / r[below][cpu] for r in found if above in r and below in r]

    size = ModelSize.of(sides.model)
    ceiling = flop_ceiling(size, [tree])
    rows, tree_seconds = ratios("rows"), median(r["tree"][0] for r in found)
    row_tokens = sum(len(tree.path(r)) for r in range(group.group_size))
    result: dict[str, Any] = {
        "engine": "paths",
        "row_tokens": row_tokens,
        "distinct_tokens": len(tree),
        "token_ratio": round(row_tokens / len(tree), 3),
        "flop_ceiling": round(ceiling, 3),
        "speedup_over_rows": round(median(rows), 3),
        "speedup_over_rows_interval": interval(rows),
        "share_of_ceiling": round(median(rows) / ceiling, 3),
        "time_over_rows_upper": interval([1 / ratio for ratio in rows])[1],
        "speedup_in_processor_time": round(median(ratios("rows", cpu=True)), 3),
        "speedup_over_trl": None,
        "tree_seconds": round(tree_seconds, 3),
        "row_seconds": round(median(r["rows"][0] for r in found), 3),
        "distinct_tokens_per_second": round(len(tree) / tree_seconds),
        "distinct_gflops_per_second": round(tree_flops(size, [tree]) / tree_seconds / 1e9, 1),
        "rows_per_micro_batch": row_count,
        "gradient_difference": differences,
        "load": [min(loads), max(loads)],
    }
    if over_trl := ratios("trl"):
        result |= {
            "speedup_over_trl": round(median(over_trl), 3),
            "speedup_over_trl_interval": interval(over_trl),
            "trl_over_rows": round(median(ratios("trl", "rows")), 3),
            "trl_rounds": len(over_trl),
            "trl_rows_per_micro_batch": trl_count,
        }
    return result | {"rounds": found}


def best(make: Callable[[Group, int], Side], model: Any, group: Group) -> tuple[int, Side]:
    """The best number of rows in a micro-batch, and the side that uses it; tried on a part of the group."""
    part = first_rollouts(group, TRIED_ON)
    timed(model, make(part, SIZES[1]))
    tried = {count: timed(model, make(part, count))[0] for count in SIZES if count <= part.group_size}
    count = min(tried, key=lambda count: tried[count])
    return count, make(group, count)


def first_rollouts(group: Group, count: int) -> Group:
    """The group of every so many-th rollout, as many as `count`."""
    chosen = range(0, group.group_size, max(1, group.group_size // count))
    rewards = [group.rewards_R[r] if r in chosen else None for r in range(group.group_size)]
    return group.with_rewards(rewards).scored()


def longest(group: Group) -> int:
    return len(group.prompt) + max(len(group.completion(r)) for r in range(group.group_size))


def timed(model: Any, side: Side) -> tuple[float, float]:
    """Seconds of a side that starts without gradients."""
    model.zero_grad(set_to_none=True)
    return seconds(side)


def difference(model: Any, side: Side, other_model: Any, other: Side) -> float:
    """Distance of two sides' gradients over all parameters, relative to the first's norm."""
    model.zero_grad(set_to_none=True)
    side()
    mine = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    other_model.zero_grad(set_to_none=True)
    other()
    theirs = {name: p.grad for name, p in other_model.named_parameters() if p.grad is not None}
    apart = sum(float((mine[n].double() - theirs[n].double()).square().sum()) for n in mine)
    whole = sum(float(grad.double().square().sum()) for grad in mine.values())
    return float(f"{(apart / whole) ** 0.5:.2g}")


def memory(model: Any, group: Group, dtype: str) -> dict[str, Any]:
    """Peak bytes beyond model and gradients, all tokens of the group in flight, on the model's first layers."""
    inner = causal_lm(model).model
    layers, inner.layers = inner.layers, inner.layers[:LAYERS]
    try:
        peaks, resident = {}, {}
        for name, side in {
            "tree": on_trees(model, group, dtype),
            "rows": as_rows(model, group, dtype, group.group_size * longest(group)),
        }.items():
            side()
            model.zero_grad(set_to_none=False)
            with LiveMemory() as live:
                side()
            peaks[name] = live.peak
            resident[name] = peak_resident(side)
        model.zero_grad(set_to_none=True)
    finally:
        inner.layers = layers
    return {
        "peak_memory_ratio": round(peaks["tree"] / peaks["rows"], 4),
        "peak_memory_bytes": peaks,
        "peak_resident_growth": resident,
        "memory_layers": LAYERS,
    }


if __name__ == "__main__":
    main()
