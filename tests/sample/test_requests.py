"""Trees grown request by request: what is asked, what a reply must be, where its segment ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level

from phloem.sample import ForkPlan, SampleError, Stage
from phloem.sample.grow import End, StageTable, Tables, token_bytes
from phloem.sample.requests import Reply, Request, grow, read_segment
from phloem.tree import Finish

TOKENIZER = byte_level(alphabet="abk<>/x")
SIZE = len(TOKENIZER)
EOS = (1, 3)
PLAN = ForkPlan((Stage(2, 6, "</k>"), Stage(3, 4)))
PIECES = token_bytes(TOKENIZER, SIZE)
TABLES = Tables(TOKENIZER, SIZE, EOS)
A, X = (TOKENIZER.convert_tokens_to_ids(c) for c in "ax")


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False).input_ids


def request(branch=(0,), until: str | None = "</k>", max_tokens: int = 6) -> Request:
    return Request(0, branch, (0, A), max_tokens, until, 7)


def reply(tokens, logprobs=None, stopped=True) -> Reply:
    return Reply(tokens, [-1.0] * len(tokens) if logprobs is None else logprobs, stopped)


CLOSED = ForkPlan((Stage(2, 6, "</k>", "a</k>"), Stage(3, 4)))
PLANS = [PLAN, CLOSED, ForkPlan((Stage(2, 3), Stage(2, 2))), ForkPlan.plain(2, 5)]


@given(st.sampled_from(PLANS), st.integers(0, 1), st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=9))
def test_the_end_found_afterwards_is_the_end_found_on_the_way(plan, stage, tokens):
    table = StageTable.build(plan, PIECES, EOS)
    stage = min(stage, len(plan.stages) - 1)
    expected, matched = (len(tokens), End.RUNNING), np.zeros(1, dtype=np.int64)
    for n, token in enumerate(tokens, 1):
        matched, ends = table.advance(np.array([stage]), matched, np.array([n]), np.array([token]))
        if ends[0] != End.RUNNING:
            expected = (n, End(ends[0]))
            break
    assert table.end_of(stage, np.array(tokens)) == expected


def test_what_comes_after_the_closing_text_is_dropped():
    tokens, logprobs, finish = read_segment(TABLES(PLAN), request(), reply([*ids("a</k>"), A, A]))
    assert finish is Finish.FORK
    assert tokens.tolist() == ids("a</k>")
    assert len(logprobs) == len(tokens)


def test_the_token_that_completes_the_tag_is_kept_whole():
    tokens = [*ids("a</k"), TOKENIZER.convert_tokens_to_ids("><")]
    own, _, finish = read_segment(TABLES(PLAN), request(), reply(tokens))
    assert (own.tolist(), finish) == (tokens, Finish.FORK)


def test_closing_text_is_added_where_the_budget_ends_and_is_not_sampled():
    """As a part of the budget: what is asked of the engine leaves room for it."""
    closing = ids("a</k>")
    (own,) = (r for r in _requests(CLOSED) if r.branch == (0,))
    assert own.max_tokens == 6 - len(closing)
    tokens, logprobs, finish = read_segment(TABLES(CLOSED), own, reply([A] * own.max_tokens, stopped=False))
    assert (tokens.tolist(), finish) == ([A] * own.max_tokens + closing, Finish.FORK)
    assert np.isnan(logprobs).tolist() == [False] * own.max_tokens + [True] * len(closing)


def _requests(plan: ForkPlan) -> list[Request]:
    seen: list[Request] = []

    class Silent:
        def run(self, requests, then) -> None:
            seen.extend(requests)

    grow(Silent(), TABLES(plan), [np.array([0])], 0, [(0,)])
    return seen


@pytest.mark.parametrize("eos", EOS)
def test_every_end_id_ends_and_is_kept(eos):
    own, _, finish = read_segment(TABLES(PLAN), request((0, 1), None, 4), reply([A, eos]))
    assert (own.tolist(), finish) == ([A, eos], Finish.STOP)


def test_the_budget_is_a_finish_of_its_own():
    own, _, finish = read_segment(TABLES(PLAN), request((0, 1), None, 4), reply([A] * 4, stopped=False))
    assert (len(own), finish) == (4, Finish.LENGTH)


@pytest.mark.parametrize(
    ("given_reply", "message"),
    [
        (reply([]), "no token ids.*return_token_ids"),
        (reply([A, X, 1], [-1.0, -2.0]), "3 ids and 2 logprobs"),
        (reply([A, 1], []), "2 ids and 0 logprobs"),
        (reply([A, 1], [-1.0, float("nan")]), "logprobs that are none.*processed_logprobs"),
        (reply([A, 1], [-1.0, 7.5]), r"logprobs that are none \(\[7.5\]\)"),
        (reply([A, SIZE]), f"id {SIZE} outside the policy's vocabulary"),
        (reply([A, X]), "2 of 6 tokens with id .* neither ends a completion nor completes '</k>'.*end ids of its own"),
        (reply([A, X], stopped=False), "shorter context"),
    ],
)
def test_a_reply_that_is_no_segment_is_refused(given_reply, message):
    with pytest.raises(SampleError, match=message):
        read_segment(TABLES(PLAN), request(), given_reply)


class Script:
    """An engine whose thoughts close and whose answers say which branch they are."""

    def __init__(self) -> None:
        self.seen: list[Request] = []

    def run(self, requests, then) -> None:
        waiting = list(requests)
        while waiting:
            own = waiting.pop()  # the last first: the order of replies is nobody's promise
            self.seen.append(own)
            thought = [A] * own.branch[0] + ids("</k>")
            waiting += then(own, reply(thought if len(own.branch) == 1 else [X] * own.branch[1] + [1]))


def test_answers_continue_the_ids_of_their_thought():
    engine = Script()
    prompts, keys = [np.array([0, X]), np.array([0, A, A])], [(5, 0), (5, 1)]
    groups = grow(engine, TABLES(PLAN), prompts, 3, keys)
    assert len(engine.seen) == 2 * (2 + 2 * 3)
    for own in engine.seen:
        prompt = prompts[own.group].tolist()
        thought = [] if len(own.branch) == 1 else [A] * own.branch[0] + ids("</k>")
        assert list(own.ids) == prompt + thought
        stage = PLAN.stages[len(own.branch) - 1]
        assert (own.max_tokens, own.until) == (stage.max_tokens, stage.until)
    for group, prompt in zip(groups, prompts, strict=True):
        assert np.array_equal(group.prompt, prompt)
        assert [s.parent for s in group.segments] == [None, 0, 0, 0, None, 4, 4, 4]
        assert [len(s) for s in group.segments] == [len(ids("</k>")), 1, 2, 3, 1 + len(ids("</k>")), 1, 2, 3]


def test_seeds_come_from_seed_key_and_branch_alone():
    def seeds(seed, keys) -> dict:
        engine = Script()
        grow(engine, TABLES(PLAN), [np.array([0])] * len(keys), seed, keys)
        return {(keys[r.group], r.branch): r.seed for r in engine.seen}

    one = seeds(0, [(5, 0), (5, 1)])
    assert len(set(one.values())) == len(one) == 16
    assert seeds(0, [(5, 1), (5, 0)]) == one
    assert not set(seeds(1, [(5, 0)]).values()) & set(one.values())
    assert all(0 <= seed < 2**53 for seed in one.values())
