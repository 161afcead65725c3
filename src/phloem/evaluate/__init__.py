"""Judging a policy on prompts it was not trained on: held-out prompts of a run, and public benchmarks."""

from phloem.evaluate.benchmarks import BENCHMARKS, Benchmark
from phloem.evaluate.comparison import Comparison, compare
from phloem.evaluate.held_out import Gain, HeldOut, paired_gain
from phloem.evaluate.pass_at_k import pass_at_k
from phloem.evaluate.run import Evaluation, evaluate

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Comparison",
    "Evaluation",
    "Gain",
    "HeldOut",
    "compare",
    "evaluate",
    "paired_gain",
    "pass_at_k",
]
