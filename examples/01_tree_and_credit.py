"""A group of rollouts as a tree, and what three rules credit on its nodes. No model: a token is a word.

python examples/01_tree_and_credit.py
"""

import numpy as np

from phloem import credit, presets
from phloem.credit.draw import draw_credit
from phloem.tree import Group, Segment

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

for name in ("grpo", "lambda-grpo", "grpo-ma"):
    assigned = credit.assign(group, presets.get(name))
    print(f"{name}\n{draw_credit(assigned, lambda tokens: ' '.join(words[token] for token in tokens))}\n")
