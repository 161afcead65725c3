"""Reinforcement learning with verifiable rewards for language models, on prefix trees."""

__version__ = "0.1.0"
