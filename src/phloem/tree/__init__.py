"""Groups of rollouts as prefix trees: numpy only."""

from phloem.tree.rollout import Finish, Group, Segment
from phloem.tree.trie import PrefixTree

__all__ = ["Finish", "Group", "PrefixTree", "Segment"]
