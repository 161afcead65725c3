"""A tree as text: one line per node, children below their parent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phloem.tree.trie import PrefixTree

__all__ = ["draw"]


def draw(
    tree: PrefixTree,
    decode: Callable[[list[int]], str],
    notes: Sequence[str] | None = None,
    width: int = 100,
) -> str:
    """Draws the nodes of a tree, with a note at the end of each line.

    Args:
        tree: of a group.
        decode: token ids to text, for example `tokenizer.decode`.
        notes: one per node (node 0 is the prompt), for example credit; None: the number of rollouts through it.
        width: of a line, in characters; long texts lose their middle.

    Raises:
        ValueError: another number of notes than nodes.
    """
    n_nodes = len(tree.node_parent_N)
    if notes is None:
        notes = [""] + [f"x{count}" for count in _rollouts_through(tree)[1:]]
    if len(notes) != n_nodes:
        raise ValueError(f"{n_nodes} nodes and {len(notes)} notes")
    children: list[list[int]] = [[] for _ in range(n_nodes)]
    for node in range(1, n_nodes):
        children[int(tree.node_parent_N[node])].append(node)

    left: list[str] = []
    stack: list[tuple[int, str, str]] = [(0, "", "")]
    order: list[int] = []
    while stack:
        node, lead, below = stack.pop()
        start, stop = int(tree.node_start[node]), int(tree.node_start[node + 1])
        text = decode(tree.tokens_T[start:stop].tolist()).replace("\n", "⏎").replace("\r", "␍")
        note_room = max((len(note) for note in notes), default=0) + 2
        left.append(lead + _shorten(text, max(8, width - len(lead) - note_room)))
        order.append(node)
        for child in reversed(children[node]):
            last = child == children[node][-1]
            stack.append((child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")))
    edge = max(len(line) for line in left) + 2
    lines = [f"{line:<{edge}}{notes[node]}".rstrip() for line, node in zip(left, order, strict=True)]
    return "\n".join(lines)


def _rollouts_through(tree: PrefixTree) -> list[int]:
    through = [0] * len(tree.node_parent_N)
    for r in range(tree.group.group_size):
        for node in {0, *tree.node_T[tree.row(r)].tolist()}:
            through[node] += 1
    return through


def _shorten(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    keep = (room - 1) // 2
    return f"{text[: room - 1 - keep]}…{text[len(text) - keep :]}"
