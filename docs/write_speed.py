"""Writes docs/speed.md from benchmarks/results: `python docs/write_speed.py`. A test compares the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"

HEAD = """# Speed and memory of an update

`docs/write_speed.py` writes the tables of this page from `benchmarks/results/`, which the named commands fill.
"""

UPDATE = """## Trees against rows and TRL

`python benchmarks/update.py`: one forward and backward of a group, without an optimiser step; SmolLM2-135M, engine
`paths`. Shapes are P/T/A KxM: tokens of prompt, thought and answer, K thoughts of M answers each; the uneven tree has
four levels of 1 to 4 children. r is row tokens over distinct tokens, the ceiling FLOPs of the rows over FLOPs of the
tree (`forward/plan.py`). Speed-ups are medians of the ratios of interleaved rounds, in brackets the 95 % interval of
their geometric mean; "of the ceiling" is speed-up over ceiling, and "in processor time" the same in processor seconds
of the process, which other work on the machine disturbs less.

All three sides give the same gradient; "gradients apart" is the distance of the rows' and of TRL's from the tree's, in
the norm over all parameters, on the first four rollouts.

- *Rows*: length-sorted micro-batches without a mask, transformers' SDPA, the same head as the trees' at predicting
  positions only; 1, 2 or 4 rows at a time, whichever is fastest.
- *TRL*: the loss of `GRPOTrainer` on the same rollouts and model, padded micro-batches of 1, 2 or 4 rows, whichever is
  fastest; advantages are handed in, nothing is sampled.
- *bfloat16 autocast*: float32 weights, matrix products in bfloat16. *bfloat16*: weights and activations too. This
  processor has bfloat16 products but no AMX, and its SDPA gains nothing from bfloat16 (350 tokens: 31 ms against 28 ms,
  1,100 tokens: 79 against 91), and loses on small blocks: trees compute attention in float32 there; rows and TRL leave
  it to SDPA.
"""

UNTIMED = """## Trees against rows and TRL

`python benchmarks/update.py` times them and measures their memory; no results of it are kept here, and none of
`benchmarks/growth.py`. One step of the demo was timed against rows: [results](results.md). Single passes on a busy
machine are in `notes/LOG.md`.
"""

MEMORY = """## Memory

Peak bytes of live tensors beyond the model, its gradients and autocast's copies of weights, with all tokens of the
group in flight on both sides: the rows in one micro-batch, not in those they are timed with. Each side runs in a fresh
process. `ratio x r` is 1 if memory follows distinct tokens. It is measured on the model's first two and three layers,
and grows by the same for each further one. What does not grow with tokens or layers, up to 256 MiB of logits and the
head's gradient, weighs more for trees. The last column is the growth of the process on three layers: gradients,
kernels' scratch and allocator's gaps included.
"""

TREES = """## Building trees

`python benchmarks/tree_building.py`, one core, millions of row tokens a second, groups and their checks included.
Lambda weights are 1/count, which the tree has counted; "credit" is the whole of `credit.assign` under lambda-GRPO on a
built tree.
"""

GROWTH = """## Growth

`python benchmarks/growth.py`: a random Llama of 10 million parameters in float32. Left and middle: more and more
thoughts of 384 tokens with 4 answers of 160 tokens each; depth first keeps at most 2,048 tokens' activations. Right:
{answers} tokens of answers shared out to 2 to 256 leaves.

![time and memory over distinct tokens, and time over leaves](img/growth.png)
"""

HEADS = """## The head

Logits are made in tiles of positions x vocabulary, in memory that is used again, and up to 256 MiB of them are kept for
the backward. Beside other ways to do it (seconds of single passes on a busy machine, not in `benchmarks/results`):

- `torch.nn.functional.linear_cross_entropy` (torch 2.13): one target for each position, no entropy. Forward and
  backward of 1,800 positions x 49,152 ids in float32 on one core took 9.3 s of processor time in its chunks with a loss
  for each position, and 6.5 s with their sum; 3.9 s here, entropy included. Without chunks it takes 3.8 s, and 354 MB
  for every tensor of logits.
- Liger Kernel's and cut-cross-entropy's fused kernels run on GPUs only. Liger's chunked GRPO loss is plain PyTorch, but
  takes rows of ids, one target for each position and one advantage for each row; cut-cross-entropy gives losses and no
  entropy, and makes all logits at once outside Triton. (Read in Liger 0.8.5 and cut-cross-entropy 25.1, not timed.)
- TRL's chunked head scores prompt positions too outside Triton devices.
"""


def page() -> str:
    """The text of docs/speed.md."""
    parts = [HEAD]
    if rows := read("update"):
        parts += [UPDATE, *tables(rows), memory(rows)]
    else:
        parts += [UNTIMED]
    if rows := read("tree_building"):
        parts += [TREES, trees(rows), note(rows)]
    if rows := read("growth"):
        parts += [growth(rows), note(rows)]
    return "\n".join([*parts, HEADS])


def read(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else []


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """One table for each dtype."""
    found = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        own = [row for row in rows if row["dtype"] == dtype]
        lines = [
            "| shape | r | ceiling | over rows | of the ceiling | in processor time | over TRL | rows over TRL "
            "| tree, s | distinct tokens/s | gradients apart | rounds, TRL rounds |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in sorted(own, key=lambda row: -row["token_ratio"]):
            apart = ", ".join(f"{value:.1g}" for value in row["gradient_difference"].values())
            lines.append(
                f"| {row['shape']} | {row['token_ratio']:.2f} | {row['flop_ceiling']:.2f} "
                f"| **{row['speedup_over_rows']:.2f}** {bracket(row['speedup_over_rows_interval'])} "
                f"| {row['share_of_ceiling']:.2f} | {row['speedup_in_processor_time'] / row['flop_ceiling']:.2f} "
                f"| {over_trl(row)} | {'' if row['trl_over_rows'] is None else format(row['trl_over_rows'], '.2f')} "
                f"| {row['tree_seconds']:.1f} | {row['distinct_tokens_per_second']} | {apart} "
                f"| {len(row['rounds'])}, {row['trl_rounds']} |"
            )
        found.append(f"### {dtype}\n\n" + "\n".join(lines) + "\n\n" + note(own))
    return found


def over_trl(row: dict[str, Any]) -> str:
    if row["speedup_over_trl"] is None:
        return ""
    # Of two rounds an interval is as wide as nothing.
    spread = f" {bracket(row['speedup_over_trl_interval'])}" if row["trl_rounds"] > 2 else ""
    return f"{row['speedup_over_trl']:.2f}{spread}"


def bracket(interval: list[float] | None) -> str:
    return "" if interval is None else f"[{interval[0]:.2f}, {interval[1]:.2f}]"


def memory(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| shape | dtype | tree, MiB | rows, MiB | ratio x r | process: tree, rows, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        peaks, grown = row["peak_memory_bytes"], row["peak_resident_growth"]
        cells = [row["shape"], row["dtype"], mebibytes(peaks["tree"]), mebibytes(peaks["rows"])]
        cells += [f"{row['peak_memory_ratio'] * row['token_ratio']:.2f}"]
        cells += [f"{mebibytes(grown['tree'])}, {mebibytes(grown['rows'])}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return MEMORY + "\n" + "\n".join(lines) + "\n"


def mebibytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:,.0f}"


def trees(rows: list[dict[str, Any]]) -> str:
    lines = ["| from | shape | row tokens | tree | credit | both |", "|---|---|---|---|---|---|"]
    for row in rows:
        speeds = (row[f"{name}_tokens_per_second"] / 1e6 for name in ("tree", "credit", "both"))
        lines.append(
            f"| {row['kind']} | {row['shape']} | {row['row_tokens']} | "
            + " | ".join(f"{speed:.1f}" for speed in speeds)
            + " |"
        )
    return "\n".join(lines) + "\n"


def growth(rows: list[dict[str, Any]]) -> str:
    flat = [row for row in rows if row["series"] == "leaves"]
    answers = 8192
    return GROWTH.format(answers=f"{answers:,}") + (
        f"\nCredit and loss take {1e3 * min(row['loss_seconds'] for row in flat):.2f} to "
        f"{1e3 * max(row['loss_seconds'] for row in flat):.2f} ms over all numbers of leaves, of passes of "
        f"{min(row['seconds'] for row in flat):.2f} to {max(row['seconds'] for row in flat):.2f} s.\n"
        if flat
        else ""
    )


def note(rows: list[dict[str, Any]]) -> str:
    """Which machine, and what else ran on it."""
    loads = [x for row in rows for x in (row["load"] if isinstance(row["load"], list) else [row["load"]])]
    machines = "; ".join(dict.fromkeys(row["machine"] for row in rows))
    machines = machines.replace(", 1 threads", ", 1 thread")
    return f"{machines}. Processes that wanted a core meanwhile (load average): {min(loads)} to {max(loads)}.\n"


if __name__ == "__main__":
    Path(__file__).with_name("speed.md").write_text(page(), encoding="utf-8")
