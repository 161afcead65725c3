"""Sampling groups of rollouts as trees."""

from phloem.sample.choose import check_engine, make_sampler
from phloem.sample.hf import HFSampler
from phloem.sample.run import SampleStats
from phloem.sample.sampler import ForkPlan, SampleError, Sampler, Stage, narrowed
from phloem.sample.twin import StaleWeights
from phloem.sample.vllm import VLLMSampler

__all__ = [
    "ForkPlan",
    "HFSampler",
    "SampleError",
    "SampleStats",
    "Sampler",
    "Stage",
    "StaleWeights",
    "VLLMSampler",
    "check_engine",
    "make_sampler",
    "narrowed",
]
