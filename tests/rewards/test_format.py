"""The strict format, and the answer taken out of a completion."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.rewards import Format, Status, extract_answer, parse_format

GOOD = [
    "<think>40 + 30</think><answer>85</answer>",
    "<think>\n40 + 30\nand 7 + 8\n</think>\n<answer>\n85\n</answer>\n",
    "<think>\r\n40 + 30\r\n</think>\r\n<answer>\r\n85\r\n</answer>\r\n",
    "  <think></think> <answer>85</answer>  ",
    "<think>3 < 4 > 2, <b>bold</b></think><answer>85</answer>",
]
BAD = [
    "",
    "85",
    "<answer>85</answer>",
    "<think>40 + 30</think>85",
    "<answer>85</answer><think>40 + 30</think>",
    "<think>a</think><answer>85</answer>.",
    "<think>a</think><answer>85</answer><|im_end|>",
    "Sure: <think>a</think><answer>85</answer>",
    "<think>a</think> so <answer>85</answer>",
    "<think>a</think><answer>85</answer><answer>86</answer>",
    "<think>a</think><think>b</think><answer>85</answer>",
    "<think><think>a</think></think><answer>85</answer>",
    "<think>a<answer>85</answer></think><answer>85</answer>",
    "<think>a</think><answer><answer>85</answer></answer>",
    "<think>a<answer>85</answer></think>",
    "<think>a</think><answer>85",
    "<THINK>a</THINK><answer>85</answer>",
]


@pytest.mark.parametrize("completion", GOOD)
def test_well_formed(completion):
    verdict = Format()(completion)
    assert verdict.reward == 1.0
    assert parse_format(completion).answer == "85"
    assert extract_answer(completion) == "85"


@pytest.mark.parametrize("completion", BAD)
def test_malformed(completion):
    assert Format()(completion).reward == 0.0
    assert parse_format(completion) is None


@pytest.mark.parametrize("completion", GOOD)
def test_the_opening_tag_may_be_in_the_prompt(completion):
    rest = completion.lstrip().removeprefix("<think>")
    assert Format(prefilled=True)(rest).reward == 1.0
    assert Format(prefilled=False)(rest).reward == 0.0
    assert Format(prefilled=True)(completion).reward == 0.0, "a second opening tag"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("85", "85"),
        ("  the answer is 85\n", "the answer is 85"),
        ("<answer>85</answer>", "85"),
        ("<answer>84</answer> no: <answer>85</answer> done", "85"),
        ("a</think>85", "85"),
        ("<think>is it <answer>84</answer>?</think><answer>85</answer>", "85"),
        ("<think>a</think>b</think><answer>85</answer>", "85"),
        ("<answer><answer>85</answer></answer>", "85"),
        ("<think>a</think><answer></answer>", ""),
    ],
)
def test_extracted(completion, answer):
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    "completion",
    [
        "<think>the answer is <answer>85</answer>",
        "<think>85",
        "<think>a</think>hm <think>again <answer>85</answer>",
        "<think>a</think><answer>85",
        "<think>a</think>85</answer>",
        "</answer>85<answer>",
    ],
)
def test_nothing_to_extract(completion):
    assert extract_answer(completion) is None


def test_an_answer_inside_the_thinking_does_not_count():
    assert extract_answer("<think>a<answer>85</answer></think>") == ""


def test_long_completions_take_linear_time():
    hostile = "<think>" * 50_000 + "<answer>" * 50_000 + "</answer>" * 50_000
    assert Format()(hostile).status is Status.WRONG
    assert extract_answer(hostile) is None


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "85", " ", "\r\n", "<", "x"]))


@given(PIECES)
@settings(max_examples=300, deadline=None)
def test_the_strict_format_and_the_extraction_agree(pieces):
    completion = "".join(pieces)
    parsed = parse_format(completion)
    if parsed is not None:
        assert extract_answer(completion) == parsed.answer
        assert parse_format(completion + "x") is None
        assert parse_format(completion.replace("<think>", ""), prefilled=True) == parsed


@given(st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_bodies_come_back_stripped(thought, answer):
    assert parse_format(f"<think>{thought}</think><answer>{answer}</answer>") == (thought.strip(), answer.strip())
