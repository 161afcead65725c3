"""A reward of one's own: how close the answered number of minutes is."""

import re


def minutes(completion: str, answer: int) -> float:
    """1 for the right number, falling with the distance; 0 where no answer can be read."""
    found = re.search(r"<answer>\s*(\d{1,4})\s*</answer>", completion)
    return max(0.0, 1 - abs(int(found[1]) - answer) / 60) if found else 0.0
