"""From rewards at the leaves to credit on the tree: numpy only."""

from phloem.credit.credit import Credit, RowCredit, assign, to_rows
from phloem.credit.weights import Totals

__all__ = ["Credit", "RowCredit", "Totals", "assign", "to_rows"]
