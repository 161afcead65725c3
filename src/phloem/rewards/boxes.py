"""Rewards on places in a picture: overlap of boxes, distance of points.

A box is [x1, y1, x2, y2] with x1 < x2 and y1 < y2, a point [x, y], in the units of the gold answer. Completions give
them as JSON-like lists inside the answer; text around the lists is ignored. Gold answers are lists of numbers, or lists
of such lists, or the JSON text of one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.rewards.format import extract_answer
from phloem.rewards.verdict import RewardError, Verdict

__all__ = ["BoxOverlap", "PointDistance", "box_iou", "matched_iou"]

Box = Sequence[float]
MAX_BOXES = 200
"""An answer with more lists than this is not read."""
_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"


def box_iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes, in [0, 1]."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


def matched_iou(offered: Sequence[Box], gold: Sequence[Box]) -> float:
    """Overlaps summed over a one-to-one matching, divided by the larger number of boxes.

    Pairs are matched greedily, largest overlap first; boxes left over on either side count as 0, so neither missing
    boxes nor a carpet of guesses pays.
    """
    pairs = sorted(((box_iou(a, b), i, j) for i, a in enumerate(offered) for j, b in enumerate(gold)), reverse=True)
    used_i: set[int] = set()
    used_j: set[int] = set()
    total = 0.0
    for overlap, i, j in pairs:
        if overlap > 0 and i not in used_i and j not in used_j:
            used_i.add(i)
            used_j.add(j)
            total += overlap
    return total / max(len(offered), len(gold))


def _lists(text: str, length: int) -> list[tuple[float, ...]]:
    """Every bracketed list of `length` finite numbers in a text, in order."""
    pattern = rf"[\[(]\s*({_NUMBER}(?:\s*,\s*{_NUMBER}){{{length - 1}}})\s*[\])]"
    return [tuple(float(number) for number in match.split(",")) for match in re.findall(pattern, text)]


def _gold_lists(answer: Any, length: int) -> list[tuple[float, ...]]:
    text = answer if isinstance(answer, str) else json.dumps(answer, default=list)
    return _lists(text, length)


def _is_box(box: Box) -> bool:
    return all(map(math.isfinite, box)) and box[0] < box[2] and box[1] < box[3]


@dataclass(frozen=True)
class BoxOverlap:
    """Reward `matched_iou` of the answer's boxes with the gold boxes, or 1 and 0 if a `threshold` is set.

    Full marks from an overlap of 1 - 1e-9 on. A malformed box in the answer is NO_ANSWER, in the gold BAD_GOLD.
    """

    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise RewardError(f"threshold is {self.threshold}; it must be in (0, 1] or None")

    def __call__(self, completion: str, answer: Any, row: Mapping[str, Any] | None = None) -> Verdict:
        gold = _gold_lists(answer, 4)
        if not gold or not all(map(_is_box, gold)):
            return Verdict.bad_gold(f"the gold answer {answer!r} is not a box [x1, y1, x2, y2] or a list of boxes")
        text = extract_answer(completion)
        boxes = _lists(text or "", 4)
        if not boxes or len(boxes) > MAX_BOXES or not all(map(_is_box, boxes)):
            return Verdict.no_answer("no box [x1, y1, x2, y2] with x1 < x2 and y1 < y2", extracted=text, gold=str(gold))
        overlap = matched_iou(boxes, gold)
        reward = overlap if self.threshold is None else float(overlap >= self.threshold)
        make, reward = (Verdict.right, 1.0) if reward >= 1 - 1e-9 else (Verdict.wrong, reward)
        return make(text, reward=reward, parsed=str(boxes), gold=str(gold), detail=f"IoU {overlap:.4f}")


@dataclass(frozen=True)
class PointDistance:
    """Reward 1 at the gold point, falling linearly to 0 at distance `reach` (in the gold's units).

    With a gold box the distance is that to the box: 0 inside. Exactly one point must be offered.
    """

    reach: float

    def __post_init__(self) -> None:
        if not (self.reach > 0 and math.isfinite(self.reach)):
            raise RewardError(f"reach is {self.reach}; it must be positive and finite")

    def __call__(self, completion: str, answer: Any, row: Mapping[str, Any] | None = None) -> Verdict:
        boxes, points = _gold_lists(answer, 4), _gold_lists(answer, 2)
        if len(boxes) + len(points) != 1 or (boxes and not _is_box(boxes[0])):
            return Verdict.bad_gold(f"the gold answer {answer!r} is neither one point [x, y] nor one box")
        x1, y1, x2, y2 = boxes[0] if boxes else (*points[0], *points[0])
        text = extract_answer(completion)
        offered = _lists(text or "", 2)
        if len(offered) != 1 or not all(map(math.isfinite, offered[0])):
            return Verdict.no_answer("not exactly one point [x, y]", extracted=text, gold=str(answer))
        x, y = offered[0]
        distance = math.hypot(max(x1 - x, 0, x - x2), max(y1 - y, 0, y - y2))
        reward = max(0.0, 1 - distance / self.reach)
        make = Verdict.right if reward >= 1 else Verdict.wrong
        return make(text, reward=reward, parsed=str(offered[0]), gold=str(answer), detail=f"distance {distance:.4g}")
