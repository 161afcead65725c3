"""A tree as text with the credit of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise

from phloem.credit.credit import Credit
from phloem.tree import PrefixTree
from phloem.tree.draw import draw

__all__ = ["draw_credit"]


def draw_credit(credit: Credit, decode: Callable[[list[int]], str], width: int = 100, rewards: bool = False) -> str:
    """Draws a tree; at the end of a line stands what each token of the node is credited, in thousandths.

    The figure is c_pos + c_neg: the weight of the token's logprob in the gradient at ratio 1. Neighbours in a node
    that get the same are named once, so a node in which a thought ends and an answer begins has two figures.

    Args:
        credit: of a group.
        decode: token ids to text.
        width: of a line, in characters.
        rewards: also name the reward of every rollout, on the line of its last token.
    """
    net_T = 1000 * (credit.c_pos_T + credit.c_neg_T)
    nodes = [(net_T[start:stop].round(1) + 0.0).tolist() for start, stop in pairwise(credit.tree.node_start.tolist())]
    notes = ["", *(" ".join(f"{value:+.1f}" for value, _ in groupby(node)) for node in nodes[1:])]
    for node, ending in enumerate(_endings(credit.tree) if rewards else ()):
        if ending:
            notes[node] = f"reward {' '.join(f'{reward:g}' for reward in ending)}  {notes[node]}"
    return draw(credit.tree, decode, notes, width)


def _endings(tree: PrefixTree) -> list[list[float]]:
    """The rewards of the rollouts that end in each node."""
    found: list[list[float]] = [[] for _ in tree.node_parent_N]
    for rollout, reward in enumerate(tree.group.rewards_R.tolist()):
        row = tree.row(rollout)
        found[int(tree.node_T[row[-1]]) if len(row) else 0].append(reward)
    return found
