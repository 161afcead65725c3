"""A tree as text with the credit of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise

from phloem.credit.credit import Credit
from phloem.tree.draw import draw

__all__ = ["draw_credit"]


def draw_credit(credit: Credit, decode: Callable[[list[int]], str], width: int = 100) -> str:
    """Draws a tree; at the end of a line stands what each token of the node is credited, in thousandths.

    The figure is c_pos + c_neg: the weight of the token's logprob in the gradient at ratio 1. Neighbours in a node
    that get the same are named once, so a node in which a thought ends and an answer begins has two figures.

    Args:
        credit: of a group.
        decode: token ids to text.
        width: of a line, in characters.
    """
    net_T = 1000 * (credit.c_pos_T + credit.c_neg_T)
    nodes = [(net_T[start:stop].round(1) + 0.0).tolist() for start, stop in pairwise(credit.tree.node_start.tolist())]
    notes = ["", *(" ".join(f"{value:+.1f}" for value, _ in groupby(node)) for node in nodes[1:])]
    return draw(credit.tree, decode, notes, width)
