"""Exact, number and choice rewards."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.rewards import Choice, Exact, Number, RewardError, Status
from phloem.rewards.simple import parse_number


def tagged(answer):
    return f"<think>hm</think><answer>{answer}</answer>"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("85", 85),
        ("085", 85),
        ("-3", -3),
        ("\N{MINUS SIGN}3", -3),
        ("+3", 3),
        ("1,234,567", 1234567),
        ("1234.50", Fraction(2469, 2)),
        (".5", Fraction(1, 2)),
        ("1e3", 1000),
        ("4.5E-2", Fraction(45, 1000)),
        ("3/4", Fraction(3, 4)),
        ("6 / 8", Fraction(3, 4)),
        ("$70,000", 70000),
        ("85 apples.", 85),
        ("12 square metres", 12),
        ("50%", 50),
        ("x = 7", 7),
    ],
)
def test_numbers_are_read_exactly(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "eighty", "1,23", "12,3456", "3/0", "1e401", "9" * 401, "3 or 4", "3, 4", "not 5", "5 not 6", "1.2.3", "0x10"],
)
def test_other_texts_are_not_one_number(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("completion", "gold", "status"),
    [
        (tagged(85), "85", Status.RIGHT),
        (tagged("85.0"), 85, Status.RIGHT),
        (tagged("1,000"), "1000", Status.RIGHT),
        (tagged("0.1"), "1/10", Status.RIGHT),
        (tagged(86), "85", Status.WRONG),
        (tagged("0.3333333333333333"), "1/3", Status.WRONG),
        (tagged("10000000000000001"), "10000000000000000", Status.WRONG),
        (tagged("84 or 85"), "85", Status.NO_ANSWER),
        (tagged("84, 85, 86"), "85", Status.NO_ANSWER),
        (tagged("not 85"), "85", Status.NO_ANSWER),
        (tagged(""), "85", Status.NO_ANSWER),
        ("<think>85", "85", Status.NO_ANSWER),
        ("40 + 45 is 85.", "85", Status.RIGHT),
        ("It was 85, then 12.", "85", Status.WRONG),
        ("either 84 or 85", "85", Status.NO_ANSWER),
        ("either 84 or maybe 85.", "85", Status.NO_ANSWER),
        ("84 or so at first. Exactly 85", "85", Status.RIGHT),
        ("it costs $1,085.", "1085", Status.RIGHT),
        ("a range of 5-85", "85", Status.RIGHT),
        ("no number at all", "85", Status.NO_ANSWER),
        (tagged("85"), "eighty-five", Status.BAD_GOLD),
        (tagged("85"), None, Status.BAD_GOLD),
        (tagged("1"), True, Status.BAD_GOLD),
    ],
)
def test_number_reward(completion, gold, status):
    assert Number()(completion, gold).status is status


def test_relative_tolerance_only_when_asked_for():
    assert Number()(tagged("3.14"), "3.1416").status is Status.WRONG
    assert Number(relative_tolerance=1e-3)(tagged("3.14"), "3.1416").status is Status.RIGHT
    assert Number(relative_tolerance=1e-3)(tagged("3.13"), "3.1416").status is Status.WRONG
    with pytest.raises(RewardError, match="relative_tolerance"):
        Number(relative_tolerance=-1)


@pytest.mark.parametrize("hostile", ["9" * 200_000, "1e" + "9" * 50, "1,111" * 40_000, "-" * 200_000, "1/" * 100_000])
def test_hostile_numbers_cost_nothing(hostile):
    assert Number()(tagged(hostile), "85").reward == 0.0
    assert Number()(hostile, "85").reward == 0.0


@pytest.mark.parametrize(
    ("offered", "gold", "reward"),
    [
        ("green  apple\n", "green apple", 1.0),
        ("Green apple", "green apple", 0.0),
        ("cafe\u0301", "café", 1.0),
        ("A or B or C", "B", 0.0),
    ],
)
def test_exact(offered, gold, reward):
    assert Exact()(tagged(offered), gold).reward == reward


def test_exact_options_and_bad_golds():
    assert Exact(ignore_case=True)(tagged("Green"), "green").reward == 1.0
    assert Exact(collapse_spaces=False)(tagged("a  b"), "a b").reward == 0.0
    assert Exact()(tagged(""), "").status is Status.BAD_GOLD
    assert Exact()(tagged("None"), None).status is Status.BAD_GOLD
    assert Exact()(tagged(7), 7).reward == 1.0
    assert Exact()("<think>b</think>", "b").status is Status.NO_ANSWER


@pytest.mark.parametrize(
    "offered", ["B", "b", "(B)", "B.", "B) four apples", "Option B", "**B**", "B: A cat sat", "The answer is B."]
)
def test_choice_is_read_in_many_writings(offered):
    assert Choice()(tagged(offered), "B").reward == 1.0
    assert Choice()(f"I think so. The answer is {offered}", "(B)").reward == 1.0


@pytest.mark.parametrize("offered", ["A", "A or B", "A, B or C", "B and C", "not B", "ABCDE", "none", "banana"])
def test_other_choices_are_not_paid(offered):
    assert Choice()(tagged(offered), "B").reward == 0.0


def test_choice_bad_gold():
    assert Choice()(tagged("B"), "the second").status is Status.BAD_GOLD
    assert Choice(labels="1234")(tagged("2"), 2).reward == 1.0
    with pytest.raises(RewardError, match="labels"):
        Choice(labels="a-b")


@given(st.fractions(), st.integers(-999_999_999, 999_999_999))
@settings(max_examples=200, deadline=None)
def test_every_number_is_right_against_itself_however_it_is_written(fraction, integer):
    assert Number()(tagged(fraction), str(fraction)).status is Status.RIGHT
    for written in (
        f"{integer}",
        f"{integer:,}",
        f"{integer}.0",
        f"{integer}e0",
        f"{2 * integer}/2",
        f" {integer} km.",
    ):
        assert Number()(tagged(written), integer).status is Status.RIGHT
    assert Number()(tagged(integer), fraction).status is (Status.RIGHT if integer == fraction else Status.WRONG)
