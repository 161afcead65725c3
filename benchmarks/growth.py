"""How time and memory of an update grow with distinct tokens and with leaves.

    python benchmarks/growth.py [--largest 70000] [--only tokens|leaves|plot] [--repeats 3]

A random Llama of 10 million parameters in float32, so that 64 thousand tokens fit.

- `tokens`: more and more thoughts of 384 tokens with 4 answers of 160 tokens each, packed whole (`paths`) and depth
  first (`dfs`, at most 2,048 tokens at a time).
- `leaves`: 8,192 tokens of answers shared out to 2 to 256 leaves; also the time of credit and loss alone.

Results and plot: `benchmarks/results/growth.json`, `docs/img/growth.png`.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from measure import RESULTS, LiveMemory, load, machine, merge_rows, seconds
from shapes import group_of_shape
from sides import RULE, on_trees
from transformers import LlamaConfig, LlamaForCausalLM

from phloem import credit
from phloem.forward import pack, prepare
from phloem.forward.dfs import bounded_backward
from phloem.loss import surrogate
from phloem.tree import Group

PICTURE = Path(__file__).parents[1] / "docs" / "img" / "growth.png"
VOCABULARY, BUDGET = 8192, 2048
THOUGHTS = (1, 2, 4, 8, 16, 32, 64)
LEAVES = (2, 4, 8, 16, 32, 64, 128, 256)
ANSWER_TOKENS = 8192


class Plain:
    """Float32, one process: what `bounded_backward` asks of whoever holds the model."""

    def autocast(self) -> Any:
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=70_000, help="distinct tokens")
    parser.add_argument("--only", choices=("tokens", "leaves", "plot"))
    parser.add_argument("--repeats", type=int, default=3)
    wanted = parser.parse_args()
    if wanted.only != "plot":
        model = small_model()
        if wanted.only != "leaves":
            tokens(model, wanted.largest, wanted.repeats)
        if wanted.only != "tokens":
            leaves(model, wanted.repeats)
    plot(json.loads((RESULTS / "growth.json").read_text("utf-8")))


def small_model() -> LlamaForCausalLM:
    """10 million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=7, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, max_position_embeddings=4096,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    prepare(model, "paths")
    return model


def tokens(model: Any, largest: int, repeats: int) -> None:
    """Time and memory with more and more thoughts."""
    for thoughts in THOUGHTS:
        group = group_of_shape(f"64/384/160 {thoughts}x4", VOCABULARY)
        tree = credit.assign(group, RULE).tree
        if len(tree) > largest:
            continue
        for engine, work in (("paths", on_trees(model, group, "float32")), ("dfs", depth_first(model, group))):
            record("tokens", engine, model, work, tree, repeats if len(tree) < 20_000 else 1)


def leaves(model: Any, repeats: int) -> None:
    """Time and the loss's part of it with more and more leaves."""
    for count in LEAVES:
        group = group_of_shape(f"64/256/{ANSWER_TOKENS // count} 2x{count // 2}", VOCABULARY)
        found = credit.assign(group, RULE)
        record("leaves", "paths", model, on_trees(model, group, "float32"), found.tree, repeats, loss_seconds(found))


def record(series: str, engine: str, model: Any, work: Any, tree: Any, repeats: int, loss: float | None = None) -> None:
    model.zero_grad(set_to_none=True)
    work()
    taken = [seconds(work)[0] for _ in range(repeats)]
    model.zero_grad(set_to_none=True)
    with LiveMemory(model.parameters()) as live:
        work()
    row = {
        "series": series,
        "engine": engine,
        "distinct_tokens": len(tree),
        "leaves": tree.group.group_size,
        "seconds": round(median(taken), 4),
        "loss_seconds": None if loss is None else round(loss, 6),
        "peak_bytes": live.peak(without=[p.grad for p in model.parameters()]),
        "load": load(),
        "machine": machine(),
    }
    print(row, flush=True)
    merge_rows(RESULTS / "growth.json", [row], ("series", "engine", "leaves"))


def depth_first(model: Any, group: Group) -> Any:
    """Forward and backward with at most `BUDGET` tokens' activations at a time."""

    def run() -> None:
        found = credit.assign(group, RULE)
        c_pos, c_neg = (torch.from_numpy(c[found.tree.sampled_T]).float() for c in (found.c_pos_T, found.c_neg_T))

        def loss(index_E: torch.Tensor, now: Any) -> torch.Tensor:
            old_E = now.logprobs_E.detach()
            c = c_pos[index_E], c_neg[index_E]
            return surrogate(now.logprobs_E, old_E, *c, RULE.clip_low, RULE.clip_high).sum()

        bounded_backward(model, pack([found.tree]), BUDGET, loss, Plain())

    return run


def loss_seconds(found: credit.Credit) -> float:
    """Surrogate on the tree's trained tokens, forward and backward, with the credit assigned to them."""
    logprobs_E = torch.randn(found.tree.U, requires_grad=True)

    def run() -> None:
        again = credit.assign(found.tree.group, RULE, None, found.tree)
        c_pos, c_neg = (torch.from_numpy(c[found.tree.sampled_T]).float() for c in (again.c_pos_T, again.c_neg_T))
        surrogate(logprobs_E, logprobs_E.detach(), c_pos, c_neg, RULE.clip_low, RULE.clip_high).sum().backward()

    run()
    return median(seconds(run)[0] for _ in range(25))


def plot(rows: list[dict[str, Any]]) -> None:
    """Time and memory over distinct tokens; time and the loss's part over leaves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Blue and orange of Okabe and Ito, which all kinds of colour vision tell apart; markers differ too.
    looks = {"paths": ("#0072B2", "o"), "dfs": ("#D55E00", "s")}
    figure, (time, space, forks) = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for engine, (colour, marker) in looks.items():
        own = sorted((r for r in rows if r["series"] == "tokens" and r["engine"] == engine), key=lambda r: r["leaves"])
        x = [r["distinct_tokens"] for r in own]
        label = {"paths": "packed whole", "dfs": "depth first"}[engine]
        time.plot(x, [r["seconds"] for r in own], color=colour, marker=marker, label=label)
        space.plot(x, [r["peak_bytes"] / 2**20 for r in own], color=colour, marker=marker, label=label)
    own = sorted((r for r in rows if r["series"] == "leaves"), key=lambda r: r["leaves"])
    x = [r["leaves"] for r in own]
    forks.plot(x, [r["seconds"] for r in own], color="#0072B2", marker="o", label="forward and backward")
    forks.plot(x, [r["loss_seconds"] for r in own], color="#009E73", marker="^", label="credit and loss alone")
    for axes, xlabel, ylabel in (
        (time, "distinct tokens", "seconds"),
        (space, "distinct tokens", "peak memory, MiB"),
        (forks, f"leaves ({ANSWER_TOKENS} answer tokens)", "seconds"),
    ):
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
