"""User functions: how they are found, called, and what their faults become."""

import asyncio
import textwrap
from pathlib import Path

import pytest
import torch

from phloem.rewards import RewardError, Status, Verdict, score_all
from phloem.rewards.custom import UserReward, load

COMPLETIONS, ANSWERS, ROWS = ["one", "two", "three"], [1, 2, 3], [{"id": "a"}, {"id": "b"}, {"id": "c"}]


def score(function):
    return score_all(UserReward(function), COMPLETIONS, ANSWERS, ROWS)


def rewards(function):
    return [verdict.reward for verdict in score(function)]


def single(completion, answer, row):
    assert (completion, answer, row) in list(zip(COMPLETIONS, ANSWERS, ROWS, strict=True))
    return answer / 4


def only_the_answer(*, answer):
    return answer / 4


def anything(**kwargs):
    assert sorted(kwargs) == ["answer", "completion", "row"]
    return kwargs["answer"] / 4


def batch(completions, answers, rows):
    assert (completions, answers, rows) == (COMPLETIONS, ANSWERS, ROWS)
    return [answer / 4 for answer in answers]


def batch_with_more(completions, **kwargs):
    assert sorted(kwargs) == ["answers", "rows"]
    return tuple(answer / 4 for answer in kwargs["answers"])


async def slow_single(completion, answer):
    await asyncio.sleep((4 - answer) / 1000)  # the last one is ready first
    return answer / 4


async def slow_batch(completions, answers):
    await asyncio.sleep(0)
    return [answer / 4 for answer in answers]


@pytest.mark.parametrize(
    "function", [single, only_the_answer, anything, batch, batch_with_more, slow_single, slow_batch]
)
def test_every_kind_of_function(function):
    assert rewards(function) == [0.25, 0.5, 0.75]


def test_async_functions_run_inside_a_running_loop():
    async def inside():
        return rewards(slow_single), rewards(slow_batch)

    assert asyncio.run(inside()) == ([0.25, 0.5, 0.75], [0.25, 0.5, 0.75])


def test_none_and_verdicts_pass_through():
    verdict = Verdict.wrong("x", reward=0.3)
    assert [v.reward for v in score(lambda answer: {1: None, 2: verdict, 3: 1}[answer])] == [None, 0.3, 1]


def test_a_single_function_faults_one_by_one():
    def touchy(answer):
        if answer == 2:
            raise KeyError("row")
        return 1.0

    async def touchy_async(answer):
        return touchy(answer)

    for function in (touchy, touchy_async):
        verdicts = score(function)
        assert [verdict.reward for verdict in verdicts] == [1, None, 1]
        assert verdicts[1].status is Status.FAULT
        assert "Traceback" in verdicts[1].detail


def test_a_batch_function_faults_as_a_whole():
    def broken(completions):
        raise RuntimeError("no server")

    verdicts = score(broken)
    assert [verdict.status for verdict in verdicts] == [Status.FAULT] * 3
    assert "Traceback" in verdicts[0].detail
    assert "no server" in verdicts[2].detail


@pytest.mark.parametrize("value", [[1.0], [1.0] * 4, "abc", 1.0, None, {"a": 1, "b": 2, "c": 3}])
def test_a_batch_function_returns_one_value_for_each(value):
    def odd(completions):
        return value

    with pytest.raises(RewardError, match=r"odd returned|odd takes a batch"):
        score(odd)


def test_nan_stops_the_run_naming_function_row_and_value():
    def odd(completions):
        return [0.0, 0.0, float("nan")]

    with pytest.raises(RewardError, match=r"odd, completion 2 of the batch.*nan"):
        score(odd)


@pytest.mark.parametrize("function", [lambda text, gold: 1.0, lambda: 1.0, lambda completion, completions: 1.0])
def test_parameters_that_cannot_be_given_are_refused(function):
    with pytest.raises(RewardError, match="parameters are given by name"):
        UserReward(function)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    source = """
        from dataclasses import dataclass

        @dataclass
        class Grade:
            value: float

        def grade(completion, row):
            return Grade(1.0 if row["id"] in completion else 0.0).value

        LIMIT = 3
    """
    (tmp_path / "my_rewards.py").write_text(textwrap.dedent(source))
    (tmp_path / "broken.py").write_text("import no_such_module_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("spec", ["my_rewards.py:grade", "my_rewards:grade", "my_rewards.grade"])
def test_three_ways_to_name_a_function(folder, spec):
    verdicts = score_all(load(spec), ["a", "b"], [None, None], [{"id": "a"}, {"id": "z"}])
    assert [verdict.reward for verdict in verdicts] == [1, 0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.py:grade", "no file nowhere.py"),
        ("my_rewards.py:grad", "found grade"),
        ("my_rewards.py:LIMIT", "no function 'LIMIT'"),
        ("broken.py:grade", "no_such_module_at_all"),
        ("no_such_package.fn", "no_such_package"),
        ("grade", "write file.py:function"),
    ],
)
def test_functions_that_cannot_be_loaded(folder, spec, message):
    with pytest.raises(RewardError, match=message):
        load(spec)


def test_a_reward_that_goes_elsewhere_leaves_the_run_where_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "goes.py").write_text(
        "import os\nos.chdir('/')\ndef away(completion, answer, row): os.chdir('/'); return 1.0\n"
    )
    reward = load("goes.py:away")
    assert Path.cwd() == tmp_path
    for way in (reward, reward.function):  # as the settings name it, and as Python hands it over
        assert score_all(way, ["a"], [None], [{}])[0].reward == 1.0
        assert Path.cwd() == tmp_path


def test_a_reward_that_switches_gradients_off_does_so_for_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "off.py").write_text(
        "import torch\ntorch.set_grad_enabled(False)\ndef off(completion): torch.set_grad_enabled(False); return 1.0\n"
    )
    reward = load("off.py:off")
    assert torch.is_grad_enabled()
    assert score_all(reward, ["a"], [None], [{}])[0].reward == 1.0
    assert torch.is_grad_enabled()
    with torch.no_grad():
        score_all(reward, ["a"], [None], [{}])
        assert not torch.is_grad_enabled()


def test_a_reward_that_changes_its_row_changes_nothing_for_others():
    row = {"seen": [], "n": 1}

    def spoils(completion, answer, row):
        row["seen"].append(completion)
        row["n"] += 1
        answer.append(1)
        return float(len(row["seen"]) + row["n"] + len(answer))

    def spoils_batch(completions, answers, rows):
        for answer, own in zip(answers, rows, strict=True):
            own["n"] += 1
            answer.append(1)
        return [float(own["n"] + len(answer)) for answer, own in zip(answers, rows, strict=True)]

    gold: list[int] = []
    for reward, expected in ((spoils, 4.0), (UserReward(spoils), 4.0), (UserReward(spoils_batch), 3.0)):
        verdicts = score_all(reward, ["a", "b"], [gold, gold], [row, row])
        assert [verdict.reward for verdict in verdicts] == [expected, expected]
    assert (row, gold) == ({"seen": [], "n": 1}, [])
