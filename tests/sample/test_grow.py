"""Where segments end and fork, without a model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level, sentence_piece

from phloem.config import SampleConfig
from phloem.sample import ForkPlan, SampleError, Stage
from phloem.sample.grow import End, Growth, StageTable, tag_table, token_bytes
from phloem.tree import Finish


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
@pytest.mark.parametrize("text", ["<think>né</think>\n<answer>7</answer>", " a  b </think> ", "\t\x00 ~ 日本 </s>x"])
def test_bytes_of_tokens_join_to_the_text(make, text):
    tokenizer = make()
    pieces = token_bytes(tokenizer, len(tokenizer) + 3)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert b"".join(pieces[i] for i in ids) == text.encode()
    assert pieces[-3:] == [b""] * 3


@given(
    tag=st.text("ab<", min_size=1, max_size=6),
    pieces=st.lists(st.text("ab<", max_size=4), min_size=1, max_size=8),
    ids=st.lists(st.integers(0, 7), max_size=20),
)
def test_the_table_finds_the_tag_where_a_search_of_the_text_does(tag, pieces, ids):
    table = tag_table([p.encode() for p in pieces], tag)
    text, state = "", 0
    for i in (i % len(pieces) for i in ids):
        text += pieces[i]
        state = int(table[state, i])
        assert (state == len(tag)) == (tag in text)


def test_a_tag_of_several_bytes_a_character():
    table = tag_table(["é".encode()[:1], "é".encode()[1:], "→".encode()], "é→")
    state = 0
    for token in (0, 1, 2):
        state = int(table[state, token])
    assert state == len("é→".encode()) == len(table) - 1


PLAN = ForkPlan((Stage(2, 5, "</k>"), Stage(3, 4)))


def _walk(tokenizer, text_ids, plan=PLAN, stage=0):
    """Feeds ids to one row; returns the number of tokens taken and how the segment ended."""
    table = StageTable.build(plan, token_bytes(tokenizer, len(tokenizer)), (1, 3))
    matched = np.zeros(1, dtype=np.int64)
    for n, token in enumerate(text_ids, 1):
        matched, ends = table.advance(np.array([stage]), matched, np.array([n]), np.array([token]))
        if ends[0] != End.RUNNING:
            return n, End(ends[0])
    return len(text_ids), End.RUNNING


def test_the_token_that_completes_the_tag_stays_whole():
    tokenizer = byte_level()
    ids = tokenizer("a</k>\nb", add_special_tokens=False).input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["a", "</", "k", ">Ċ", "b"]
    assert _walk(tokenizer, ids) == (4, End.FORK)
    straddling = tokenizer("x</k><", add_special_tokens=False).input_ids
    assert tokenizer.convert_ids_to_tokens(straddling) == ["x</", "k", "><"]
    assert _walk(tokenizer, straddling) == (3, End.FORK)


def test_a_thought_ends_by_tag_eos_or_budget():
    tokenizer = byte_level()
    letters = tokenizer("bcdefgh", add_special_tokens=False).input_ids
    assert _walk(tokenizer, letters) == (5, End.LENGTH)
    assert _walk(tokenizer, [*letters[:2], 1]) == (3, End.STOP)
    assert _walk(tokenizer, [*letters[:2], 3]) == (3, End.STOP)
    assert _walk(tokenizer, [*letters[:4], 1]) == (5, End.STOP), "an EOS as the last token of the budget"
    tag = tokenizer("bb</k>", add_special_tokens=False).input_ids
    assert _walk(tokenizer, tag) == (5, End.FORK), "a tag completed by the last token of the budget"
    assert _walk(tokenizer, letters, stage=1) == (4, End.LENGTH)
    assert _walk(tokenizer, tag[:3], stage=1) == (3, End.RUNNING), "the last stage looks for no tag"


def test_an_early_stage_without_a_tag_forks_at_its_budget():
    plan = ForkPlan((Stage(2, 3), Stage(2, 4)))
    letters = byte_level()("bcdefgh", add_special_tokens=False).input_ids
    assert _walk(byte_level(), letters, plan, 0) == (3, End.FORK)
    assert _walk(byte_level(), [4, 5, 1], plan, 0) == (3, End.STOP)
    assert _walk(byte_level(), letters, plan, 1) == (4, End.LENGTH)


def test_groups_come_in_branch_order_whatever_ended_first():
    growth = Growth(np.array([9]))
    for branch in [(1,), (0, 1), (0,), (0, 0)]:
        growth.add(branch, np.array([len(branch), branch[-1]]), np.zeros(2, np.float32), Finish.LENGTH)
    group = growth.group()
    assert [s.parent for s in group.segments] == [None, 0, 0, None]
    assert [list(s.tokens) for s in group.segments] == [[1, 0], [2, 0], [2, 1], [1, 1]]


def test_plans():
    config = SampleConfig(thoughts=4, answers=3, thought_tokens=10, answer_tokens=5)
    assert ForkPlan.from_config(config) == ForkPlan((Stage(4, 10, "</think>"), Stage(3, 5)))
    flat = SampleConfig(thoughts=4, answers=1, thought_tokens=10, answer_tokens=5)
    assert ForkPlan.from_config(flat) == ForkPlan.plain(4, 15)
    assert (PLAN.rollouts, PLAN.max_tokens) == (6, 9)
    for stages in [(), (Stage(2, 5, "</k>"),)]:
        with pytest.raises(SampleError):
            ForkPlan(stages)
    for wrong in [(0, 5), (2, 0), (2, 5, "")]:
        with pytest.raises(SampleError):
            Stage(*wrong)
