"""Rewards: from one completion, its gold answer and its data row to a `Verdict`."""

from phloem.rewards.verdict import RewardError, Status, Verdict, tally, to_verdict

__all__ = ["RewardError", "Status", "Verdict", "tally", "to_verdict"]
