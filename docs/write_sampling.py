"""Writes docs/sampling-speed.md from benchmarks/results: `python docs/write_sampling.py`. A test compares the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "sampling.json"

HEAD = """# Speed of sampling

`python benchmarks/sampling.py`, SmolLM2-135M: 8 prompts of 200 tokens, completions of 112 + 16 tokens that no end id
cuts short, so that all sides draw the same number of tokens. T16A1: 16 rollouts of a prompt; T4A4: 4 thoughts with 4
answers each. `generate` is transformers' `model.generate(num_return_sequences=...)` on the same model{calls}. Ratios
are medians over interleaved rounds with their range, over `generate` of the rounds that have it, by the clock and in
processor seconds of the process, which other work on the machine disturbs less; `load` is how many processes wanted a
core meanwhile. `docs/write_sampling.py` writes this page.
"""
TWO_CALLS = "; for T4A4 it is\ncalled twice, for the thoughts and then for the answers"

LIMITS = """## Against the machine's limits

A decode step has to read the weights and the keys and values of its rows, and to multiply with them. `memory` is that
reading at the bandwidth of a long sum, `arithmetic` the operations (prompts included) at the rate of a product of two
1536 x 1536 matrices, both measured in the same process; whole sampling calls, in seconds.
"""

PROFILE = """## What stands between

Shares of the time of a sampling of a quarter of the length, by torch's profiler.
"""


def page() -> str:
    """The text of docs/sampling-speed.md."""
    rows = json.loads(RESULTS.read_text("utf-8"))
    ours = [row for row in rows if row["side"] == "phloem"]
    machines = "; ".join(dict.fromkeys(row["machine"] for row in rows))
    twice = any((row["shape"], row["side"]) == ("T4A4", "generate") for row in rows)
    parts = [HEAD.format(calls=TWO_CALLS if twice else ""), times(rows), f"{machines}.\n", LIMITS, limits(ours)]
    if profiled := [row for row in ours if "profile" in row]:
        parts += [PROFILE, profiles(profiled)]
    return "\n".join(parts)


def times(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| dtype | shape | by | seconds | tokens/s | ms per step | over generate | in processor time | time over T16A1 "
        "| in processor time | rounds | load |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            row["dtype"],
            row["shape"],
            row["side"],
            f"{row['seconds']:.1f}",
            f"{row['tokens_per_second']:.0f}",
            f"{row['milliseconds_per_decode_step']:.0f}",
            ratio(row, "speedup_over_generate"),
            ratio(row, "speedup_over_generate_in_processor_time"),
            ratio(row, "time_over_T16A1"),
            ratio(row, "time_over_T16A1_in_processor_time"),
            str(len(row["rounds"])),
            f"{row['load'][0]:.0f} to {row['load'][1]:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ratio(row: dict[str, Any], key: str) -> str:
    if key not in row:
        return ""
    low, high = row[f"{key}_range"]
    return f"**{row[key]:.2f}** [{low:.2f}, {high:.2f}]"


def limits(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| dtype | shape | taken | memory | arithmetic | share of the limit | GB/s | GFLOPS |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['dtype']} | {row['shape']} | {row['seconds']:.1f} | {row['limit_memory_seconds']:.1f} "
            f"| {row['limit_arithmetic_seconds']:.1f} | {row['share_of_limit']:.0%} "
            f"| {row['measured_gigabytes_per_second']:.0f} | {row['measured_gigaflops']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def profiles(rows: list[dict[str, Any]]) -> str:
    parts = list(rows[0]["profile"])
    lines = [f"| dtype | shape | {' | '.join(parts)} |", "|---|---" + "|---" * len(parts) + "|"]
    for row in rows:
        shares = " | ".join(f"{row['profile'][part]:.0%}" for part in parts)
        lines.append(f"| {row['dtype']} | {row['shape']} | {shares} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("sampling-speed.md").write_text(page(), encoding="utf-8")
