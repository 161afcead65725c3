"""Sampling groups as trees against `model.generate(num_return_sequences=...)`, and against what the machine could do.

    python benchmarks/sampling.py --model FOLDER [--dtype float32] [--rounds 5] [--out benchmarks/results/sampling.json]

8 prompts of 200 tokens, completions of 112 + 16 tokens that no end id cuts short, so that every side draws the same
number of tokens: 16 rollouts of a prompt (T16A1), and 4 thoughts with 4 answers each (T4A4). Sides take turns inside
a round, so a machine that slows down slows all of them; processor seconds of the process stand beside those of the
clock, since other work on the machine disturbs them less. A round is [seconds, processor seconds, load average, id].
With `--two-calls`, `generate` samples T4A4 too: the thoughts, then the answers on prompt and thought, as one would
without forks. `--profile` adds the shares of a shorter sampling's time by what operators do.

With `--out` a row's rounds are added to those already in the file, so that rounds can be spread over several calls;
ratios are of times in the same round.
Limits are those of this machine at this moment: the bytes that a decode step must read (weights, and the keys and
values of every row) over the bandwidth of a long sum, and its multiply-adds over the rate of a large square product;
a step cannot be faster than the slower of the two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import time
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from measure import load
from measure import seconds as both_clocks

from phloem.config import ModelConfig, SampleConfig
from phloem.models import load_model
from phloem.sample import ForkPlan, HFSampler, Stage

PROMPTS, PROMPT_TOKENS, THOUGHT, ANSWER = 8, 200, 112, 16
PLANS = {
    "T16A1": ForkPlan.plain(16, THOUGHT + ANSWER),
    "T4A4": ForkPlan((Stage(4, THOUGHT), Stage(4, ANSWER))),
}
PARTS = {
    "products with weights": ("aten::mm", "aten::addmm", "mkldnn::_linear_pointwise"),
    "attention": (
        "aten::bmm",
        "aten::baddbmm_",
        "aten::_softmax",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    ),
    "moving and indexing": (
        "aten::index",
        "aten::index_select",
        "aten::copy_",
        "aten::cat",
        "aten::_index_put_impl_",
        "aten::fill_",
    ),
}
"""Operators by what they do; the rest is arithmetic on activations."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-generate", action="store_true", help="only our two shapes")
    parser.add_argument("--two-calls", action="store_true", help="also T4A4 by two calls of generate")
    parser.add_argument("--profile", action="store_true", help="also where a decode step's time goes")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()

    model, tokenizer = load_model(ModelConfig(path=wanted.model))
    model = model.to(getattr(torch, wanted.dtype)).eval()
    sampler = HFSampler(model, tokenizer, SampleConfig(max_rows=PROMPTS * 16), eos_ids=())
    rng = np.random.default_rng(0)
    prompts = [rng.integers(100, model.config.vocab_size // 2, PROMPT_TOKENS) for _ in range(PROMPTS)]
    sides = sides_of(model, sampler, prompts, not wanted.without_generate, wanted.two_calls)
    sampler.sample(prompts[:1], ForkPlan.plain(2, 2), [(0,)])

    kept = json.loads(wanted.out.read_text("utf-8")) if wanted.out and wanted.out.exists() else []
    seconds = {(r["shape"], r["side"]): r["rounds"] for r in kept if r["dtype"] == wanted.dtype}
    profiles = {r["shape"]: r["profile"] for r in kept if r["dtype"] == wanted.dtype and "profile" in r}
    if wanted.profile:
        profiles = {shape: profile(sampler, prompts, shape) for shape in PLANS}
    limits = step_limits(model)
    others = [r for r in kept if r["dtype"] != wanted.dtype]
    for _ in range(wanted.rounds):
        stamp, found = int(time()), {}
        for key, side in sides.items():
            wall, busy = both_clocks(side)
            found[key] = [round(wall, 2), round(busy, 2), load(), stamp]
            print(wanted.dtype, *key, found[key], flush=True)
        for key, figures in found.items():
            seconds.setdefault(key, []).append(figures)
        save(others + summary(seconds, wanted.dtype, limits, profiles), wanted.out)


def save(rows: list[dict[str, Any]], path: Path | None) -> None:
    """After every round, so that an interrupted call keeps the rounds before."""
    text = json.dumps(rows, indent=2) + "\n"
    if path is None:
        print(text)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def sides_of(
    model: Any, sampler: HFSampler, prompts: list[np.ndarray], with_generate: bool, with_two_calls: bool
) -> dict[tuple[str, str], Callable[[], Any]]:
    """What takes turns: (shape, side) -> one whole sampling of 8 groups."""
    keys = [(0, i) for i in range(len(prompts))]
    ids = torch.from_numpy(np.stack(prompts))

    def generate(rows: torch.Tensor, copies: int, tokens: int) -> torch.Tensor:
        with torch.inference_mode():
            return model.generate(
                rows,
                attention_mask=torch.ones_like(rows),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=copies,
                max_new_tokens=tokens,
                eos_token_id=None,
                pad_token_id=0,
            )

    def two_calls() -> torch.Tensor:
        return generate(generate(ids, 4, THOUGHT), 4, ANSWER)

    sides: dict[tuple[str, str], Callable[[], Any]] = {}
    model.generation_config.eos_token_id = None
    for shape, plan in PLANS.items():
        sides[shape, "phloem"] = lambda plan=plan: sampler.sample(prompts, plan, keys)
    if with_generate:
        sides["T16A1", "generate"] = lambda: generate(ids, 16, THOUGHT + ANSWER)
    if with_two_calls:
        sides["T4A4", "generate"] = two_calls
    return sides


def timed(work: Callable[[], Any]) -> float:
    return both_clocks(work)[0]


def summary(
    seconds: dict[tuple[str, str], list[list[float]]],
    dtype: str,
    limits: dict[str, float],
    profiles: dict[str, dict[str, float]],
) -> list[dict[str, Any]]:
    """One row per shape and side: medians over rounds, their range, and ratios of the same round."""
    rows = []
    for (shape, side), rounds in sorted(seconds.items()):
        drawn = PROMPTS * (16 * (THOUGHT + ANSWER) if shape == "T16A1" else 4 * THOUGHT + 16 * ANSWER)
        taken = [wall for wall, *_ in rounds]
        row: dict[str, Any] = {
            "shape": shape,
            "side": side,
            "dtype": dtype,
            "seconds": median(taken),
            "seconds_range": [min(taken), max(taken)],
            "processor_seconds": median(busy for _, busy, *_ in rounds),
            "tokens_per_second": round(drawn / median(taken), 1),
            "milliseconds_per_decode_step": round(1000 * median(taken) / (THOUGHT + ANSWER), 1),
            "load": [min(r[2] for r in rounds), max(r[2] for r in rounds)],
            "rounds": rounds,
        }
        for name, other in (("speedup_over_generate", (shape, "generate")), ("time_over_T16A1", ("T16A1", side))):
            if other in seconds and other != (shape, side):
                same = {r[3]: r for r in seconds[other]}
                for clock, suffix in ((0, ""), (1, "_in_processor_time")):
                    pairs = [(r[clock], same[r[3]][clock]) for r in rounds if r[3] in same]
                    if not pairs:
                        continue
                    ratios = [b / a if name.startswith("speedup") else a / b for a, b in pairs]
                    row[name + suffix] = round(median(ratios), 3)
                    row[f"{name}{suffix}_range"] = [round(min(ratios), 3), round(max(ratios), 3)]
        if side == "phloem":
            row |= against_limits(row, limits)
            if shape in profiles:
                row["profile"] = profiles[shape]
        row["machine"] = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
        rows.append(row)
    return rows


def step_limits(model: Any) -> dict[str, float]:
    """Bytes and operations of a decode step, and this machine's rates (best of ten)."""
    dtype = next(model.parameters()).dtype
    config = model.config
    square = torch.randn(1536, 1536).to(dtype)
    long = torch.randn(64_000_000)
    weights = sum(p.numel() for p in model.parameters())  # tied: the head reads what the embedding would
    size = config.hidden_size // config.num_attention_heads
    kept = 2 * config.num_hidden_layers * config.num_key_value_heads * size
    return {
        "bytes_per_second": 4 * len(long) / min(timed(long.sum) for _ in range(10)),
        "flops_per_second": 2 * 1536**3 / min(timed(lambda: square @ square) for _ in range(10)),
        "weights": weights,
        "bytes_per_number": dtype.itemsize,
        "kept_per_token": kept,
        "attended_per_token": 4 * config.num_hidden_layers * config.num_attention_heads * size,
    }


def against_limits(row: dict[str, Any], limits: dict[str, float]) -> dict[str, Any]:
    """Seconds that the decode steps of a shape need at the least, by memory and by arithmetic."""
    thoughts = PROMPTS * (16 if row["shape"] == "T16A1" else 4)
    read = operations = 0.0
    for step in range(THOUGHT + ANSWER):
        rows = thoughts if step < THOUGHT else PROMPTS * 16
        numbers = limits["weights"] + limits["kept_per_token"] * (PROMPTS * PROMPT_TOKENS + rows * step)
        read += limits["bytes_per_number"] * numbers
        operations += rows * (2 * limits["weights"] + limits["attended_per_token"] * (PROMPT_TOKENS + step))
    prompt = 2 * PROMPTS * PROMPT_TOKENS * limits["weights"]
    memory, arithmetic = read / limits["bytes_per_second"], (operations + prompt) / limits["flops_per_second"]
    return {
        "limit_memory_seconds": round(memory, 2),
        "limit_arithmetic_seconds": round(arithmetic, 2),
        "share_of_limit": round(max(memory, arithmetic) / row["seconds"], 3),
        "measured_gigabytes_per_second": round(limits["bytes_per_second"] / 1e9, 1),
        "measured_gigaflops": round(limits["flops_per_second"] / 1e9, 1),
    }


def profile(sampler: HFSampler, prompts: list[np.ndarray], shape: str) -> dict[str, float]:
    """Shares of the time of a shorter sampling (a quarter of the tokens), by what operators do."""
    plan = PLANS[shape]
    short = ForkPlan(tuple(Stage(s.fan_out, s.max_tokens // 4) for s in plan.stages))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        whole = timed(lambda: sampler.sample(prompts, short, [(0, i) for i in range(len(prompts))]))
    own = {event.key: event.self_cpu_time_total / 1e6 for event in found.key_averages()}
    shares = {part: sum(own.get(name, 0.0) for name in names) / whole for part, names in PARTS.items()}
    shares["arithmetic on activations"] = sum(own.values()) / whole - sum(shares.values())
    shares["outside of operators"] = 1 - sum(own.values()) / whole
    return {part: round(share, 3) for part, share in shares.items()}


if __name__ == "__main__":
    main()
