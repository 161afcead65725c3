"""What an update costs, in floating-point operations, as rows and as trees: the ceiling on what sharing can save.

Forward and backward of a decoder take about 6 FLOPs per parameter of its matrix products and token, and 12 per query
feature, layer and attended pair of tokens (scores and weighted values, 2 FLOPs each, once forward and twice
backward). The head counts at positions that predict a trained token only, on both sides. Norms, rotary embeddings
and softmax are left out, as is the recomputation that checkpointing and the chunked head pay for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from torch import nn

from phloem.forward.split import causal_lm, split
from phloem.tree.trie import PrefixTree

__all__ = ["ModelSize", "flop_ceiling", "row_flops", "tree_flops"]


@dataclass(frozen=True)
class ModelSize:
    """What the cost of a model depends on.

    Attributes:
        body: parameters of the body's matrix products (embedding tables are looked up, not multiplied).
        head: parameters of the output embedding.
        features: query features of a layer (heads times head size).
        windows: the sliding window of each layer, None for full attention.
    """

    body: int
    head: int
    features: int
    windows: tuple[int | None, ...]

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
        return cls(
            body=sum(p.numel() for p in matrices),
            head=sum(p.numel() for p in head.module.parameters() if p.ndim >= 2),
            features=size * config.num_attention_heads,
            windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        )


def tree_flops(size: ModelSize, trees: Sequence[PrefixTree]) -> float:
    """Forward and backward over the distinct tokens of some trees."""
    predicting = sum(len(np.unique(tree.parent_T[tree.sampled_T])) for tree in trees)
    return _flops(size, np.concatenate([tree.depth_T for tree in trees]), predicting)


def row_flops(size: ModelSize, trees: Sequence[PrefixTree]) -> float:
    """Forward and backward over the same rollouts as rows, without padding."""
    rows = [tree.prompt_length + len(tree.row(r)) for tree in trees for r in range(tree.group.group_size)]
    return _flops(size, np.concatenate([np.arange(n) for n in rows]), sum(tree.Z for tree in trees))


def flop_ceiling(size: ModelSize, trees: Sequence[PrefixTree]) -> float:
    """FLOPs of the rows over FLOPs of the trees: how many times faster than rows an ideal tree forward would be."""
    return row_flops(size, trees) / tree_flops(size, trees)


def _flops(size: ModelSize, position: Int64[np.ndarray, " n"], predicting: int) -> float:
    """Of tokens at these positions of their rows; each attends to itself and what the window leaves of those above."""
    seen = position + 1
    pairs = sum(float((seen if w is None else np.minimum(seen, w)).sum()) for w in size.windows)
    return 6.0 * size.body * len(position) + 12.0 * size.features * pairs + 6.0 * size.head * predicting
