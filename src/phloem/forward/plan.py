"""What an update costs, in floating-point operations, as rows and as trees: the ceiling on what sharing can save.

Forward and backward of a decoder take about 6 FLOPs per parameter of its matrix products and token (4 where the
parameter is frozen), and 12 per query feature, layer and attended pair of tokens (scores and weighted values, 2 FLOPs
each, once forward and twice backward). The head counts at positions that predict a trained token only, on both sides.
Norms, rotary embeddings and softmax are left out, as is the recomputation that checkpointing and the chunked head pay
for memory.

How an update runs follows from it. Trees are packed whole up to the token budget; packing repeats nothing. A larger
tree runs depth first (`dfs.py`), which repeats the forward of what its pieces share, once: a third of its cost. To
split it into smaller trees would repeat forward and backward of the shared prefix in all but one of them, at least
three times as much, so that is never chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from torch import nn

from phloem.forward.pack import split_into_packs
from phloem.forward.pieces import cut_into_pieces
from phloem.forward.split import causal_lm, split
from phloem.tree.rollout import Group, Segment
from phloem.tree.structure import token_ratio
from phloem.tree.trie import PrefixTree

__all__ = [
    "ModelSize",
    "UpdatePlan",
    "choose_engine",
    "flop_ceiling",
    "flops_at",
    "plan_update",
    "row_flops",
    "tree_flops",
    "tree_of_shape",
]

# Share of an update's work from which a larger token budget is worth a word.
WORTH_SAYING = 0.1


@dataclass(frozen=True)
class ModelSize:
    """What the cost of a model depends on.

    Attributes:
        body: parameters of the body's matrix products (embedding tables are looked up, not multiplied).
        head: parameters of the output embedding.
        features: query features of a layer (heads times head size).
        windows: the sliding window of each layer, None for full attention.
        frozen, frozen_head: parameters among `body` and `head` that are not trained.
    """

    body: int
    head: int
    features: int
    windows: tuple[int | None, ...]
    frozen: int = 0
    frozen_head: int = 0

    @classmethod
    def of(cls, model: nn.Module) -> ModelSize:
        """The sizes of a causal language model; of experts, all are counted as if each token visited every one."""
        body, head = split(model)
        config = causal_lm(model).config.get_text_config()
        tables = {id(p) for m in body.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
        matrices = [p for p in body.parameters() if p.ndim >= 2 and id(p) not in tables]
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
        of_head = [p for p in head.module.parameters() if p.ndim >= 2]
        return cls(
            body=sum(p.numel() for p in matrices),
            head=sum(p.numel() for p in of_head),
            features=size * config.num_attention_heads,
            windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
            frozen=sum(p.numel() for p in matrices if not p.requires_grad),
            frozen_head=sum(p.numel() for p in of_head if not p.requires_grad),
        )


def tree_flops(size: ModelSize, trees: Sequence[PrefixTree]) -> float:
    """Forward and backward over the distinct tokens of some trees."""
    predicting = sum(len(np.unique(tree.parent_T[tree.sampled_T])) for tree in trees)
    return flops_at(size, np.concatenate([tree.depth_T for tree in trees]), predicting)


def row_flops(size: ModelSize, trees: Sequence[PrefixTree]) -> float:
    """Forward and backward over the same rollouts as rows, without padding."""
    rows = [tree.prompt_length + len(tree.row(r)) for tree in trees for r in range(tree.group.group_size)]
    return flops_at(size, np.concatenate([np.arange(n) for n in rows]), sum(tree.Z for tree in trees))


def flop_ceiling(size: ModelSize, trees: Sequence[PrefixTree]) -> float:
    """FLOPs of the rows over FLOPs of the trees: how many times faster than rows an ideal tree forward would be."""
    return row_flops(size, trees) / tree_flops(size, trees)


def flops_at(size: ModelSize, position: Int64[np.ndarray, " n"], predicting: int) -> float:
    """Forward and backward of tokens at these positions of their rows, some of which predict trained tokens.

    Each attends to itself and what the window leaves of those above.
    """
    seen = position + 1
    pairs = sum(float((seen if w is None else np.minimum(seen, w)).sum()) for w in size.windows)
    body, head = 6.0 * size.body - 2.0 * size.frozen, 6.0 * size.head - 2.0 * size.frozen_head
    return body * len(position) + 12.0 * size.features * pairs + head * predicting


@dataclass(frozen=True)
class UpdatePlan:
    """How an update on some trees would run.

    Attributes:
        engine: the attention back end.
        trees, tree_tokens, row_tokens: their number, their distinct tokens, their tokens as rows.
        ceiling: how many times faster than rows an ideal tree forward would be.
        pack_tokens, packs: the token budget, and packs of at most that size.
        deep: trees over the budget, which run depth first.
        repeated: FLOPs that these take twice, as a share of the whole update.
    """

    engine: str
    trees: int
    tree_tokens: int
    row_tokens: int
    ceiling: float
    pack_tokens: int
    packs: int
    deep: int
    repeated: float

    @property
    def token_ratio(self) -> float:
        """Row tokens over distinct tokens."""
        return self.row_tokens / self.tree_tokens

    def __str__(self) -> str:
        line = (
            f"{self.tree_tokens:,} tree tokens on {self.engine} for {self.row_tokens:,} of rows, token ratio "
            f"{self.token_ratio:.2f}, at most {self.ceiling:.2f} times as fast as rows; "
        )
        if self.packs:
            line += f"packs of up to {self.pack_tokens:,} tokens: {self.packs}"
        if self.deep:
            line += ", " if self.packs else ""
            line += (
                f"trees over {self.pack_tokens:,} tokens: {self.deep}, depth first, which repeats {self.repeated:.1%} "
                "of the work"
            )
            if self.repeated > WORTH_SAYING:
                line += "; raise optim.pack_tokens if memory allows"
        return line


def plan_update(size: ModelSize, trees: Sequence[PrefixTree], engine: str, pack_tokens: int) -> UpdatePlan:
    """How an update on these trees runs under a token budget, and what it could gain over rows."""
    deep = [tree for tree in trees if len(tree) > pack_tokens]
    whole = tree_flops(size, trees)
    return UpdatePlan(
        engine=engine,
        trees=len(trees),
        tree_tokens=sum(map(len, trees)),
        row_tokens=sum(round(token_ratio(tree) * len(tree)) for tree in trees),
        ceiling=row_flops(size, trees) / whole,
        pack_tokens=pack_tokens,
        packs=len(split_into_packs([tree for tree in trees if len(tree) <= pack_tokens], pack_tokens)),
        deep=len(deep),
        repeated=sum(_repeated_flops(size, tree, pack_tokens) for tree in deep) / whole,
    )


def _repeated_flops(size: ModelSize, tree: PrefixTree, budget: int) -> float:
    """Of the second forward of a tree's inner pieces: a third of forward and backward, without the head."""
    inner = [tree.depth_T[p.start : p.stop] for p in cut_into_pieces(tree, budget) if p.inner]
    return sum(flops_at(size, depth, 0) for depth in inner) / 3


def tree_of_shape(prompt: int, levels: Sequence[tuple[int, int]]) -> PrefixTree:
    """A full tree whose rollouts share nothing by accident.

    Args:
        prompt: its tokens.
        levels: (fan-out, tokens of a segment) from the prompt down: ((4, 250), (4, 50)) for 4 thoughts x 4 answers.
    """
    segments: list[Segment] = []
    first, parents = 0, list[int | None]([None])
    for fan_out, length in levels:
        begun = len(segments)
        for parent in parents:
            for _ in range(fan_out):
                segments.append(Segment(np.arange(first, first + length), parent))
                first += length
        parents = [*range(begun, len(segments))]
    return PrefixTree.from_group(Group(np.zeros(prompt, dtype=np.int64), tuple(segments)))


def choose_engine(device: str) -> str:
    """The back end for a type of device: one fused kernel on CUDA, blocks of exact pairs elsewhere."""
    return "flex" if device == "cuda" else "paths"
