"""The training loop."""

from phloem.train.loop import RunResult, TrainError, train

__all__ = ["RunResult", "TrainError", "train"]
