"""Forward and backward of one group: on its tree, as rows, and by TRL's GRPOTrainer, on the same rollouts.

    python benchmarks/update.py [--shape "50/250/50 4x4"] [--dtype float32] [--rounds 5] [--trl-rounds 5] [--more]

No optimiser step. Sides take turns inside a round, so that a machine that slows down slows all; ratios are those of a
round, and their median is quoted. Rows and TRL run at the best of several micro-batch sizes. TRL comes with the extra
`trl`, in an environment of its own; `--trl-rounds 0` goes without. `--more` adds rounds to those of an earlier call, at
its sizes of micro-batches, so that long shapes can be timed in parts. Results are merged into
`benchmarks/results/update.json`; `docs/write_speed.py` writes the table in docs/speed.md from them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
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
SIZES, TRIED_ON = (1, 2, 4), 4
# Memory is measured on as many of the model's first layers; they are alike, so that it grows by the same from each to
# the next, up to the whole model's, which all rows of a long shape at once would not fit into.
LAYERS = (3, 2)


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
    parser.add_argument("--more", action="store_true", help="add rounds to those in the file")
    parser.add_argument("--memory-of", choices=("tree", "rows"), help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.memory_of:
        dtype, (shape,) = wanted.dtype[0], wanted.shape
        model = make_sides(wanted.model, dtype, None).model
        group = group_of_shape(shape, model.config.vocab_size)
        print(json.dumps(memory_of(wanted.memory_of, model, group, dtype)))
        return
    for dtype in wanted.dtype or DTYPES:
        with tempfile.TemporaryDirectory() as folder:
            sides = make_sides(wanted.model, dtype, folder if wanted.trl_rounds else None)
            for shape in wanted.shape or SHAPES:
                group = group_of_shape(shape, sides.model.config.vocab_size)
                earlier = earlier_row(shape, dtype) if wanted.more else None
                row = {"shape": shape, "dtype": dtype, "machine": machine()}
                row |= earlier or memory(wanted.model, shape, dtype)
                for found in compare(sides, group, wanted.rounds, wanted.trl_rounds, earlier):
                    merge_rows(RESULTS / "update.json", [row := row | found], ("shape", "dtype"))
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


def earlier_row(shape: str, dtype: str) -> dict[str, Any]:
    """What the file holds of a shape; without such a row the program ends and says so."""
    path = RESULTS / "update.json"
    rows = json.loads(path.read_text("utf-8")) if path.exists() else []
    for row in rows:
        if (row["shape"], row["dtype"]) == (shape, dtype):
            return row
    sys.exit(f"update: {path} has no rounds of {shape} in {dtype} to add to; leave --more out the first time")


def compare(
    sides: Sides, group: Group, rounds: int, trl_rounds: int, earlier: dict[str, Any] | None
) -> Iterator[dict[str, Any]]:
    """Times of all sides over interleaved rounds, and what they could be; after every round what is known by then."""
    earlier, part, make_trl = earlier or {}, first_rollouts(group, TRIED_ON), sides.trl if trl_rounds else None
    row_count = earlier.get("rows_per_micro_batch") or best(sides.rows, sides.model, part)
    trl_count = earlier.get("trl_rows_per_micro_batch")
    if make_trl is not None:
        trl_count = trl_count or best(make_trl, sides.trl_model, part)
    differences = {"rows": difference(sides.model, sides.tree(part), sides.model, sides.rows(part, row_count))}
    if make_trl is not None:
        trl_part = make_trl(part, trl_count)
        differences["trl"] = difference(sides.model, sides.tree(part), sides.trl_model, trl_part)
    on_tree, on_rows = sides.tree(group), sides.rows(group, row_count)
    on_trl = None if make_trl is None else make_trl(group, trl_count)
    counts = {"rows_per_micro_batch": row_count, "trl_rows_per_micro_batch": trl_count}
    counts["gradient_difference"] = earlier.get("gradient_difference", {}) | differences
    size, tree = ModelSize.of(sides.model), PrefixTree.from_group(group)
    found: list[dict[str, Any]] = list(earlier.get("rounds", []))
    timed(sides.model, on_tree)
    for i in range(rounds):
        found.append({"tree": timed(sides.model, on_tree), "rows": timed(sides.model, on_rows), "load": load()})
        if on_trl is not None and i < trl_rounds:
            found[-1]["trl"] = timed(sides.trl_model, on_trl)
        yield figures(size, tree, found) | counts | {"rounds": found}


def figures(size: ModelSize, tree: PrefixTree, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What the rounds say: ratios are medians of a round's, intervals those of their geometric mean."""

    def ratios(above: str, below: str = "tree", kind: int = 0) -> list[float]:
        return [r[above][kind] / r[below][kind] for r in rounds if above in r and below in r]

    ceiling = flop_ceiling(size, [tree])
    over_rows, over_trl = ratios("rows"), ratios("trl")
    tree_seconds = median(r["tree"][0] for r in rounds)
    over = interval([1 / ratio for ratio in over_rows])
    row_tokens = sum(len(tree.path(r)) for r in range(tree.group.group_size))
    return {
        "engine": "paths",
        "row_tokens": row_tokens,
        "distinct_tokens": len(tree),
        "token_ratio": round(row_tokens / len(tree), 3),
        "flop_ceiling": round(ceiling, 3),
        "speedup_over_rows": round(median(over_rows), 3),
        "speedup_over_rows_interval": interval(over_rows),
        "share_of_ceiling": round(median(over_rows) / ceiling, 3),
        "time_over_rows_upper": over and over[1],
        "speedup_in_processor_time": round(median(ratios("rows", kind=1)), 3),
        "speedup_over_trl": round(median(over_trl), 3) if over_trl else None,
        "speedup_over_trl_interval": interval(over_trl),
        "trl_over_rows": round(median(ratios("trl", "rows")), 3) if over_trl else None,
        "trl_rounds": len(over_trl),
        "tree_seconds": round(tree_seconds, 3),
        "row_seconds": round(median(r["rows"][0] for r in rounds), 3),
        "distinct_tokens_per_second": round(len(tree) / tree_seconds),
        "gflops_per_second": round(tree_flops(size, [tree]) / tree_seconds / 1e9, 1),
        "load": [min(r["load"] for r in rounds), max(r["load"] for r in rounds)],
    }


def best(make: Callable[[Group, int], Side], model: Any, part: Group) -> int:
    """The number of rows in a micro-batch at which a side is fastest."""
    timed(model, make(part, SIZES[1]))
    tried = {count: timed(model, make(part, count))[0] for count in SIZES if count <= part.group_size}
    return min(tried, key=lambda count: tried[count])


def first_rollouts(group: Group, count: int) -> Group:
    """The group of the first rollouts."""
    rewards = [float(reward) if r < count else None for r, reward in enumerate(group.rewards_R)]
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


def memory(path: str, shape: str, dtype: str) -> dict[str, Any]:
    """Peak memory of trees and of rows, all tokens of the group in flight, each in a fresh process."""
    found = {}
    for side in ("tree", "rows"):
        command = [sys.executable, __file__, "--model", path, "--shape", shape, "--dtype", dtype, "--memory-of", side]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[side] = json.loads(done.stdout.splitlines()[-1])
    return {
        "peak_memory_ratio": round(found["tree"]["live"] / found["rows"]["live"], 4),
        "peak_memory_bytes": {side: found[side]["live"] for side in found},
        "peak_memory_of_layers": {side: dict(zip(LAYERS, found[side]["measured"], strict=True)) for side in found},
        "peak_resident_growth": {side: found[side]["resident"] for side in found},
        "memory_layers": found["tree"]["layers"],
    }


def memory_of(side: str, model: Any, group: Group, dtype: str) -> dict[str, Any]:
    """Peak bytes of one pass: of live tensors beyond model and gradients, for the whole model's depth as for the
    layers it was measured on, and by which the process grew on the first pass (a later one finds memory to use again).
    """
    inner, tokens = causal_lm(model).model, group.group_size * longest(group)
    depth, kept = len(inner.layers), inner.layers
    work = on_trees(model, group, dtype) if side == "tree" else as_rows(model, group, dtype, tokens)
    peaks, grown = [], []
    for layers in LAYERS:
        inner.layers = kept[:layers]
        model.zero_grad(set_to_none=True)
        with LiveMemory(model.parameters()) as live:
            grown.append(peak_resident(work))
        peaks.append(live.peak(without=[p.grad for p in model.parameters() if p.grad is not None]))
    of_layer = (peaks[1] - peaks[0]) / (LAYERS[1] - LAYERS[0])
    whole = round(peaks[0] + of_layer * (depth - LAYERS[0]))
    return {"live": whole, "measured": peaks, "resident": grown[0], "layers": LAYERS[0]}


if __name__ == "__main__":
    main()
