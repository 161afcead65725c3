"""Judging a policy on prompts it was not trained on."""

from phloem.evaluate.held_out import Gain, HeldOut, paired_gain

__all__ = ["Gain", "HeldOut", "paired_gain"]
