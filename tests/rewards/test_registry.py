"""Rewards by name."""

import pytest

from phloem.rewards import REWARDS, Number, RewardError, get


def test_names_and_arguments():
    assert get("number", relative_tolerance=0.01) == Number(relative_tolerance=0.01)
    assert {"exact", "number", "choice", "format", "math"} <= set(REWARDS)


@pytest.mark.parametrize(
    ("spec", "args", "message"),
    [
        ("numbr", {}, "use one of exact, number"),
        ("number", {"tolerance": 1}, "tolerance"),
        ("my.fn", {"limit": 3}, "takes no arguments"),
    ],
)
def test_what_is_not_there(spec, args, message):
    with pytest.raises(RewardError, match=message):
        get(spec, **args)
