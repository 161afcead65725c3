"""A group of rollouts as a tree, and what three rules credit on its nodes. No model: a token is a word.

python examples/01_tree_and_credit.py
"""

from itertools import groupby, pairwise

import numpy as np

from phloem import credit, presets
from phloem.tree import Group, Segment
from phloem.tree.draw import draw

words: list[str] = []


def ids(text: str) -> np.ndarray:
    """One id for each word, a new one for a new word."""
    words.extend(word for word in dict.fromkeys(text.split()) if word not in words)
    return np.array([words.index(word) for word in text.split()])


group = Group(
    prompt=ids("17 + 25 ="),
    segments=(
        Segment(ids("<think> tens, then ones </think>")),
        Segment(ids("<think> tens and ones apart </think>")),
        Segment(ids("<think> a guess </think>")),
        Segment(ids("<answer> 42 </answer>"), parent=0, reward=1.0),
        Segment(ids("<answer> 32 </answer>"), parent=0, reward=0.0),
        Segment(ids("<answer> 42 </answer>"), parent=1, reward=1.0),
        Segment(ids("<answer> 42 </answer>"), parent=1, reward=1.0),
        Segment(ids("<answer> 40 </answer>"), parent=2, reward=0.0),
        Segment(ids("<answer> 41 </answer>"), parent=2, reward=0.0),
    ),
)


def credit_of_nodes(name: str) -> tuple[credit.Credit, list[str]]:
    """Per node, what each of its tokens is credited, in thousandths; neighbours that get the same are named once."""
    assigned = credit.assign(group, presets.get(name))
    net = 1000 * (assigned.c_pos_T + assigned.c_neg_T)
    starts = assigned.tree.node_start
    nodes = [net[start:stop].round(1) + 0.0 for start, stop in pairwise(starts)]
    return assigned, ["", *(" ".join(f"{c:+.1f}" for c, _ in groupby(node)) for node in nodes[1:])]


for name in ("grpo", "lambda-grpo", "grpo-ma"):
    assigned, notes = credit_of_nodes(name)
    picture = draw(assigned.tree, lambda tokens: " ".join(words[token] for token in tokens), notes)
    print(f"{name}\n{picture}\n")
