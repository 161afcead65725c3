"""Making a model fit for trees: attention set, dropout off, what cannot be served refused, and a numeric check.

A tree merges tokens that several rollouts share, so everything between a row's tokens must be attention over
position ids, and everything else must act on one token at a time. What is known to break this is refused by name;
the numeric check stops on whatever else does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import nn

from phloem.forward import flex
from phloem.forward.allocator import keep_freed_memory
from phloem.forward.attention import ENGINES, attention_name, windows_used
from phloem.forward.dfs import bounded_logprobs
from phloem.forward.features import CannotServe, declared_windows, refuse, silence
from phloem.forward.logprobs import Logprobs, logprobs
from phloem.forward.pack import Pack, pack
from phloem.forward.plan import choose_engine
from phloem.forward.rows import Row, logprobs_of_rows
from phloem.forward.split import causal_lm
from phloem.tree.rollout import Group, Segment
from phloem.tree.trie import PrefixTree

__all__ = ["check", "prepare"]

# Largest difference that rounding explains, relative to the largest log-probability (in nats, at least 1), by dtype of
# the weights. Models round inside (norms, rotary tables) to float32 even when their weights are float64. Half
# precision only shows gross faults.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}

# Tokens of a piece in the check: enough to cut its tree at several depths.
PIECE = 8


def prepare(
    model: nn.Module,
    engine: Literal["auto", "dense", "paths", "flex"] = "auto",
    announce: Callable[[str], None] = print,
) -> str:
    """Makes a causal language model ready for `forward.logprobs`; once for the model's life, before training.

    Sets the attention back end (plain SDPA wherever no pack is given, so sampling is as before), and every dropout
    except that of LoRA adapters to 0: rollouts that share a token cannot have masks of their own. Then `check`.
    On a CPU the process holds on to the memory it frees from then on (`allocator.py`).

    Args:
        model: from transformers, possibly with peft adapters.
        engine: `dense`, `paths`, `flex`, or `auto`: `flex` on CUDA, `paths` elsewhere (`docs/engines.md`).
        announce: is told what was changed, one line at a time.

    Returns:
        The engine: `dense`, `paths` or `flex`.

    Raises:
        CannotServe: a feature that the tree forward cannot serve, a device that the engine cannot train on, or the
            check found a difference.
        ValueError: an unknown engine, or another one than the model already has.
    """
    if engine not in ("auto", *ENGINES):
        raise ValueError(f"engine is {engine!r}; it must be auto, {', '.join(ENGINES[:-1])} or {ENGINES[-1]}")
    refuse(model)
    whole = causal_lm(model)
    before = whole.config._attn_implementation
    taken = next((name for name in ENGINES if before == attention_name(name)), None)
    if taken is not None and engine not in ("auto", taken):
        raise ValueError(f"the model runs on {taken} and keeps it for its life: load it again for {engine}")
    chosen = taken or (engine if engine != "auto" else choose_engine(whole.device.type))
    if chosen == "flex":
        flex.refuse_device(whole.device)
    for line in silence(model):
        announce(line)
    if taken is not None:
        return taken
    if whole.device.type == "cpu":
        keep_freed_memory()
    group = _group_of_check(whole.config.get_text_config().vocab_size)
    with _evaluating(model):
        expected = logprobs_of_rows(model, group)
        whole.set_attn_implementation(attention_name(chosen))
        try:
            check(model, group, expected)
        except BaseException:
            whole.set_attn_implementation(before)
            raise
    return chosen


def check(model: nn.Module, group: Group, expected: list[Row]) -> None:
    """Compares a prepared model on the tree of `group` with the rows of the model as it came.

    Raises:
        CannotServe: the rows' logprobs are not numbers; the two differ by more than rounding explains, on a pack, in
            pieces or without a pack; or layers did not ask for the sliding windows that the configuration declares.
    """
    whole = causal_lm(model)
    if not all(torch.isfinite(row.logprobs_L).all() for row in expected):
        raise CannotServe(
            f"the weights of this {type(whole).__name__} give logits that are not finite numbers: they hold NaN or "
            f"infinities, or overflow in {whole.dtype}. Load another checkpoint, or set model.dtype to float32"
        )
    tree = PrefixTree.from_group(group)
    packed = pack([tree]).to(whole.device)
    on_trees = {
        "on a tree": logprobs(model, packed),
        "on a tree in pieces": bounded_logprobs(model, packed, PIECE),
    }
    plain = logprobs_of_rows(model, group)
    largest = max((row.logprobs_L.abs().max().item() for row in expected), default=0.0)
    tolerance = TOLERANCE[whole.dtype] * max(1.0, largest)
    for r, (row, again) in enumerate(zip(expected, plain, strict=True)):
        found = {where: _of_row(values, packed, r) for where, values in on_trees.items()}
        found["without a pack"] = torch.stack([again.logprobs_L, again.entropy_L])
        for where, values in found.items():
            difference = (values - torch.stack([row.logprobs_L, row.entropy_L])).abs().max().item()
            if not difference <= tolerance:
                raise CannotServe(
                    f"{type(whole).__name__} {where} differs by {difference:.2g} nats from the row alone "
                    f"(rounding explains {tolerance:.2g} in {whole.dtype}): something in it mixes tokens by other "
                    "means than attention over position ids"
                )
    declared, used = declared_windows(whole.config.get_text_config()), windows_used(packed)
    if declared != used:
        raise CannotServe(f"{type(whole).__name__} declares sliding windows {declared}, but its layers use {used}")


def _of_row(found: Logprobs, packed: Pack, rollout: int) -> torch.Tensor:
    """Logprobs and entropies of one rollout's completion, all of it sampled, in a pack of one tree; shape (2, L)."""
    both_E = torch.stack([found.logprobs_E, found.entropy_E])
    index_L = torch.from_numpy(packed.trees[0].row(rollout)).to(both_E.device)
    return both_E[:, torch.searchsorted(packed.trained_E, index_L)]


def _group_of_check(vocabulary: int) -> Group:
    """A small tree with forks of uneven fan-out, a duplicate, a prefix of another and a fork with one child."""
    draw = np.random.default_rng(0)

    def ids(n: int) -> np.ndarray:
        return draw.integers(0, vocabulary, n)

    twin = ids(4)
    return Group(
        prompt=ids(5),
        segments=(
            Segment(ids(6)),
            Segment(ids(3)),
            Segment(ids(4)),
            Segment(twin, parent=0),
            Segment(twin.copy(), parent=0),
            Segment(twin[:2].copy(), parent=0),
            Segment(ids(5), parent=1),
            Segment(ids(3), parent=6),
            Segment(ids(2), parent=6),
        ),
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """No gradient and no dropout inside; every module's mode is as before after."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
