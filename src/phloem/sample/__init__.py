"""Sampling groups of rollouts as trees."""

from phloem.sample.hf import HFSampler
from phloem.sample.run import SampleStats
from phloem.sample.sampler import ForkPlan, SampleError, Sampler, Stage
from phloem.sample.twin import StaleWeights

__all__ = ["ForkPlan", "HFSampler", "SampleError", "SampleStats", "Sampler", "Stage", "StaleWeights"]
