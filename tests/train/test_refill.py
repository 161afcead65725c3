"""Dynamic sampling: groups without a spread make room, a bounded number of times; all that is sampled is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from short_runs import metrics, rollouts
from tiny_run import tiny_run

from phloem import OptimConfig, SampleConfig
from phloem.rewards import Verdict
from phloem.tasks import Example
from phloem.train.refill import Drawn, has_no_spread, sampled_metrics, with_spread
from phloem.tree import Group


def group(rewards: list[float | None]) -> Group:
    return Group.from_rollouts([1], [[r + 2, 9] for r in range(len(rewards))], rewards)


def draws(outcomes: list[list[float | None]]):
    """A `draw` that hands out groups of these rewards in turn, and what it was asked for."""
    asked: list[tuple[int, int]] = []

    def draw(count: int, first: int) -> Drawn:
        assert first == sum(n for n, _ in asked)
        asked.append((count, first))
        own = outcomes[first : first + count]
        verdicts = [[Verdict.wrong(reward=r) if r is not None else Verdict.bad_gold("x") for r in rs] for rs in own]
        examples = [Example(str(first + i), "?", "") for i in range(count)]
        return Drawn(examples, [group(rewards) for rewards in own], verdicts, sample=1.0, reward=0.5)

    return draw, asked


FLAT, SPREAD, LONE, NONE = [1.0, 1.0], [0.0, 1.0], [None, 1.0], [None, None]


def ids(drawn: Drawn) -> list[str]:
    return [example.id for example in drawn.examples]


@pytest.mark.parametrize("rewards", [FLAT, LONE, NONE, [0.1, 0.1 + 1e-9]])
def test_what_has_no_spread(rewards):
    assert has_no_spread(group(rewards))
    assert not has_no_spread(group(SPREAD))


def test_groups_without_a_spread_are_replaced_in_place_and_the_rest_is_left_alone():
    draw, asked = draws([SPREAD, FLAT, LONE, SPREAD, NONE, SPREAD, SPREAD])
    kept, replaced = with_spread(draw, 4, rounds=3)
    assert asked == [(4, 0), (2, 4), (1, 6)]
    assert ids(kept) == ["0", "6", "5", "3"]
    assert ids(replaced) == ["1", "2", "4"]
    assert not any(map(has_no_spread, kept.groups))
    assert (kept.sample, kept.reward) == (3.0, 1.5)


def test_the_rounds_are_bounded_and_what_is_left_stays():
    draw, asked = draws([FLAT] * 20)
    kept, replaced = with_spread(draw, 2, rounds=2)
    assert asked == [(2, 0), (2, 2), (2, 4)]
    assert (ids(kept), ids(replaced)) == (["4", "5"], ["0", "1", "2", "3"])


def test_without_rounds_nothing_is_looked_at():
    draw, asked = draws([FLAT] * 4)
    kept, replaced = with_spread(draw, 4, rounds=0)
    assert (ids(kept), ids(replaced), asked) == (["0", "1", "2", "3"], [], [(4, 0)])


def test_all_that_was_sampled_is_counted():
    draw, _ = draws([SPREAD, FLAT, NONE, SPREAD])
    figures = sampled_metrics(*with_spread(draw, 2, rounds=2))
    assert figures["sampled/groups"] == 4
    assert figures["sampled/tokens"] == 4 * 2 * 2
    assert figures["sampled/zero_spread"] == 0.5
    assert figures["sampled/reward"] == pytest.approx(4 / 6)
    assert figures["verdict/bad-gold"] == 2
    assert figures["verdict/unscored_share"] == 0.25


@pytest.mark.model
def test_a_run_refills_logs_and_goes_through_the_data(tmp_path):
    """Prompts 0 to 3: two pay every rollout alike, so that the batch ends up with the other two."""

    def reward(completion: str, answer: Any, row: Any) -> float:
        return 1.0 if answer in "01" else float(len(set(completion)))

    sections = {
        "sample": SampleConfig(thoughts=4, answers=1, thought_tokens=6, answer_tokens=4, refill_rounds=4),
        "optim": OptimConfig(steps=2, prompts_per_step=2, lr=1e-3),
    }
    tiny_run(tmp_path, reward=reward, sections=sections)
    steps, groups = metrics(tmp_path / "run", "train"), rollouts(tmp_path / "run")
    thrown_away = [g for g in groups if g.get("replaced")]
    assert sum(step["sampled/groups"] for step in steps) == len(groups) > 4
    assert all(step["groups"] == 2 and step["zero_spread"] == 0 for step in steps)
    assert {g["answer"] for g in groups if not g.get("replaced")} == {"2", "3"}
    assert {g["answer"] for g in thrown_away} <= {"0", "1"}
    tokens = sum(len(segment["ids"]) for g in groups for segment in g["segments"])
    assert sum(step["sampled/tokens"] for step in steps) == tokens
    assert any(step["sampled/zero_spread"] > 0 for step in steps)
    assert all(np.isfinite(step["grad_norm"]) and step["grad_norm"] > 0 for step in steps)
