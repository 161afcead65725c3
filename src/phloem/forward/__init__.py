"""The forward over packed prefix trees, and the row-by-row forward it must equal."""

from phloem.forward.dfs import Machine, bounded_backward, bounded_logprobs
from phloem.forward.features import CannotServe
from phloem.forward.logprobs import Logprobs, logprobs
from phloem.forward.pack import Pack, pack, split_into_packs
from phloem.forward.prepare import prepare
from phloem.forward.rows import Row, logprobs_of_rows

__all__ = [
    "CannotServe",
    "Logprobs",
    "Machine",
    "Pack",
    "Row",
    "bounded_backward",
    "bounded_logprobs",
    "logprobs",
    "logprobs_of_rows",
    "pack",
    "prepare",
    "split_into_packs",
]
