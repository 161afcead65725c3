"""A run folder, read back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from short_runs import metrics, rollouts
from tiny_run import tiny_run

from phloem import credit, presets
from phloem.analysis.runs import drawn_group, group_of, summary
from phloem.cli import main
from phloem.credit.draw import draw_credit
from phloem.kinds import ConfigError
from phloem.tree import Group

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("finished")).folder


def test_the_summary_names_settings_evaluations_and_figures(finished):
    text = summary(finished)
    assert "grpo-ma on 2 x 2" in text
    assert "1 of 1 steps" in text
    assert text.count("held-out reward at step") == 2
    reward = metrics(finished, "train")
    assert f"  {'reward':<18} {reward[0]['reward']:.3f}" in text


def test_a_logged_group_is_the_group_that_was_credited(finished):
    for record in rollouts(finished):
        group = group_of(record)
        assert credit.assign(group, presets.get("grpo-ma")).advantage_B.tolist() == record["branches"]["advantage"]
        assert [s.tokens.tolist() for s in group.segments] == [s["ids"] for s in record["segments"]]


def test_a_drawn_group_shows_every_node_with_its_credit(finished):
    record = rollouts(finished)[1]
    text = drawn_group(finished, 1, 1)
    tree = credit.assign(group_of(record), presets.get("grpo-ma")).tree
    head, *nodes = text.splitlines()
    assert f"example {record['id']}" in head
    assert len(nodes) == len(tree.node_parent_N)
    assert all(line.rstrip()[-2] == "." for line in nodes[1:])


def test_figures_of_a_node_are_those_of_its_tokens():
    group = Group.from_rollouts(np.array([0]), [np.array([1, 2]), np.array([1, 3])], rewards=[1.0, 0.0])
    assigned = credit.assign(group, presets.get("grpo", scale="none"))
    prompt, shared, first, second = draw_credit(assigned, lambda ids: " ".join(map(str, ids))).splitlines()
    assert prompt.split() == ["0"]
    # Advantages .5 and -.5, each token weighs 1/4.
    assert [line.split()[-1] for line in (shared, first, second)] == ["+0.0", "+125.0", "-125.0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}", "--step", "1", "--group", "2"], "has 2 groups at step 1; group 2 is not one of them"),
        (["{run}", "--step", "9"], "has no groups at step 9; it has steps 1"),
        (["{run}", "--step", "x"], "--step is 'x'; it takes a whole number"),
        (["{run}", "--stop", "1"], "phloem inspect takes no --stop"),
        (["nowhere"], "nowhere is not a run folder"),
        ([], "needs a run folder"),
    ],
)
def test_what_cannot_be_shown_is_said(finished, capsys, words, message):
    assert main(["inspect", *(word.format(run=finished) for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_the_command_prints_both(finished, capsys):
    assert main(["inspect", str(finished)]) == 0
    assert capsys.readouterr().out == summary(finished) + "\n"
    assert main(["inspect", str(finished), "--step=1", "--group=1"]) == 0
    assert capsys.readouterr().out == drawn_group(finished, 1, 1) + "\n"


def test_a_run_that_saved_no_model_is_drawn_with_the_tokenizer_it_began_with(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    shutil.rmtree(copy / "model")
    assert drawn_group(copy, 1) == drawn_group(finished, 1)


def test_a_run_without_rollouts_is_refused_by_name(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "rollouts.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"has no rollouts\.jsonl"):
        drawn_group(copy, 1)


def test_a_run_that_was_never_scored_and_was_killed_can_be_read(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    lines = metrics(copy)
    unknown = {"reward": None, "standard_error": None, "constant_baseline": None}
    changed = [line | unknown if line["kind"] == "evaluation" else line for line in lines]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
    assert "held-out reward at step 0: - (2 prompts x 2; always one answer -)" in summary(copy)
    with (copy / "rollouts.jsonl").open("a") as file:
        file.write('{"step": 2, "id": "cut sh')
    assert drawn_group(copy, 1, 1) == drawn_group(finished, 1, 1)


def test_absent_steps_are_answered_with_the_ones_there_are(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    lines = rollouts(copy)
    with (copy / "rollouts.jsonl").open("w") as file:
        file.writelines(json.dumps(line | {"step": step}) + "\n" for step in (1, 2, 3, 7) for line in lines)
    with pytest.raises(ConfigError, match=r"has no groups at step 5; it has steps 1 to 3, 7$"):
        drawn_group(copy, 5)


def test_the_reward_stands_where_its_rollout_ends(finished):
    record = rollouts(finished)[0]
    text = drawn_group(finished, 1)
    rewards = [segment["reward"] for segment in record["segments"] if "reward" in segment]
    assert text.count("reward ") == len({tuple(p) for p in _paths(record)})
    for reward in rewards:
        assert f"reward {reward:g}" in text


def _paths(record: dict) -> list[list[int]]:
    group = group_of(record)
    return [group.completion(r).tolist() for r in range(group.group_size)]


def test_the_summary_advises_on_thoughts_and_answers(finished, tmp_path):
    assert "fewer than 5 groups have two thoughts with two scored answers" in summary(finished)
    copy = shutil.copytree(finished, tmp_path / "copy")
    rng = np.random.default_rng(0)
    ids = {"finish": "length", "scored": True}
    with (copy / "rollouts.jsonl").open("w") as file:
        for _ in range(40):
            values = rng.normal(size=2)
            segments = [{"parent": None, "ids": [n], **ids, "finish": "fork"} for n in (1, 2)]
            segments += [{"parent": t, "ids": [3, 4], "reward": values[t] + rng.normal(), **ids} for t in (0, 0, 1, 1)]
            file.write(json.dumps({"step": 1, "prompt_ids": [0], "segments": segments}) + "\n")
    text = summary(copy)
    assert "40 groups" in text
    assert "a thought has 1.0 tokens, an answer 2.0" in text
    assert "2 x 2" in text
    assert "try sample.thoughts" in text
    assert "of resampled runs" in text
