"""Rewards: from one completion, its gold answer and its data row to a `Verdict`."""

from phloem.rewards.compose import BatchReward, Gate, Reward, WeightedSum, score_all
from phloem.rewards.format import Format, extract_answer, parse_format
from phloem.rewards.registry import REWARDS, get
from phloem.rewards.simple import Choice, Exact, Number
from phloem.rewards.verdict import RewardError, Status, Verdict, tally, to_verdict

__all__ = [
    "REWARDS",
    "BatchReward",
    "Choice",
    "Exact",
    "Format",
    "Gate",
    "Number",
    "Reward",
    "RewardError",
    "Status",
    "Verdict",
    "WeightedSum",
    "extract_answer",
    "get",
    "parse_format",
    "score_all",
    "tally",
    "to_verdict",
]
