"""Overlap of boxes and distance of points."""

import pytest

from phloem.rewards import RewardError, Status
from phloem.rewards.boxes import BoxOverlap, PointDistance, box_iou, matched_iou


def test_iou_by_hand():
    assert box_iou([0, 0, 2, 2], [0, 0, 2, 2]) == 1
    assert box_iou([0, 0, 2, 2], [1, 1, 3, 3]) == pytest.approx(1 / 7)
    assert box_iou([0, 0, 1, 1], [1, 0, 2, 1]) == 0


def test_missing_and_superfluous_boxes_cost():
    gold = [[0, 0, 2, 2], [10, 10, 12, 12]]
    assert matched_iou(gold[::-1], gold) == 1
    assert matched_iou(gold[:1], gold) == 0.5
    assert matched_iou([*gold, [5, 5, 6, 6], [7, 7, 8, 8]], gold) == 0.5
    assert matched_iou([gold[0], gold[0]], gold) == 0.5, "one gold box is matched once"


def test_box_reward():
    reward = BoxOverlap()
    assert reward("<answer>[1, 2, 3, 4]</answer>", [1, 2, 3, 4]).status is Status.RIGHT
    assert reward("The box is [1.0, 2, 3, 4].", "[1, 2, 3, 4]").reward == 1
    assert reward("<answer>[[0,0,2,2],[10,10,12,12]]</answer>", [[10, 10, 12, 12], [0, 0, 2, 2]]).reward == 1
    half = reward("<answer>[0, 0, 1, 2]</answer>", [0, 0, 2, 2])
    assert half.reward == pytest.approx(0.5)
    assert half.status is Status.WRONG
    assert BoxOverlap(threshold=0.5)("<answer>[0, 0, 1, 2]</answer>", [0, 0, 2, 2]).reward == 1


@pytest.mark.parametrize(
    "offered", ["", "[1, 2, 3]", "[3, 4, 1, 2]", "[1, 1, 1, 5]", "[nan, 0, 1, 1]", "[1,2,3,4]" * 201]
)
def test_malformed_boxes_are_no_answer(offered):
    assert BoxOverlap()(f"<answer>{offered}</answer>", [0, 0, 2, 2]).status is Status.NO_ANSWER


@pytest.mark.parametrize("gold", [None, [], "left", [3, 4, 1, 2]])
def test_malformed_golds_are_not_scored(gold):
    assert BoxOverlap()("<answer>[1, 2, 3, 4]</answer>", gold).status is Status.BAD_GOLD
    assert PointDistance(reach=5)("<answer>[1, 2]</answer>", gold).status is Status.BAD_GOLD


def test_point_reward():
    reward = PointDistance(reach=10)
    assert reward("<answer>[3, 4]</answer>", [3, 4]).status is Status.RIGHT
    assert reward("<answer>(3, 4)</answer>", [0, 0]).reward == pytest.approx(0.5)
    assert reward("<answer>[30, 40]</answer>", [0, 0]).reward == 0
    assert reward("<answer>[5, 5]</answer>", [0, 0, 10, 10]).reward == 1, "inside the gold box"
    assert reward("<answer>[15, 5]</answer>", [0, 0, 10, 10]).reward == pytest.approx(0.5)
    assert reward("<answer>[0, 0] or [3, 4]</answer>", [3, 4]).status is Status.NO_ANSWER


def test_impossible_settings_are_refused():
    with pytest.raises(RewardError, match="threshold"):
        BoxOverlap(threshold=0)
    with pytest.raises(RewardError, match="reach"):
        PointDistance(reach=float("nan"))
