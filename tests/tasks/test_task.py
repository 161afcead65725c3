"""What every task shares: scoring, the check of golds, the constant baseline, sizes."""

import pytest

from phloem.rewards import Format, Gate, Number, RewardError, Status
from phloem.tasks import Example, ExampleTask, TaskError


def examples(answers, split="train"):
    return [Example(f"{split}-{i}", f"question {i}", answer, {"i": i}) for i, answer in enumerate(answers)]


def task(train=("4", "4", "5"), held_out=("4", "4", "4", "6"), reward=None, **fields):
    return ExampleTask("toy", examples(train), examples(held_out, "held-out"), reward or Number(), **fields)


def test_score_sees_the_completion_the_answer_and_the_row():
    seen = []

    def spy(completion, answer, row):
        seen.append((completion, answer, row))
        return 1.0

    toy = task(reward=spy)
    toy.score(["only this"], toy.train[2:])
    assert seen == [("only this", "5", {"i": 2})]


@pytest.mark.parametrize(
    "prompt", ["question", ({"role": "system", "content": "be brief"}, {"role": "user", "content": "question"})]
)
def test_rewards_get_one_string_for_both_styles_of_prompt(prompt):
    kinds = []
    toy = ExampleTask("toy", [Example("a", prompt, "4")], [], lambda c, a, r: kinds.append((type(c), c)) or 1.0)
    toy.score(["<answer>4</answer>"], toy.train)
    assert kinds == [(str, "<answer>4</answer>")]


def test_lengths_must_agree():
    with pytest.raises(RewardError, match="1 completions, 3 answers"):
        task().score(["x"], task().train)


def test_an_impossible_value_names_the_example():
    toy = task(reward=lambda completion, answer, row: float("nan") if row["i"] == 1 else 0.0)
    with pytest.raises(RewardError, match=r"nan.*example train-1"):
        toy.score(["x", "x", "x"], toy.train)


def test_check_passes_and_says_so():
    report = task().check()
    assert report.ok
    assert report.total == 7
    assert str(report) == "7 of 7 gold answers score 1 against themselves"


def test_check_tells_unusable_golds_from_failing_ones_with_their_rows():
    def picky(completion, answer, row):
        return 0.5 if "7" in completion else Number()(completion, answer, row)

    report = task(train=("4", "prose", "7"), held_out=("4", "seven"), reward=picky, notes=("3 rows left out",)).check()
    assert not report.ok
    assert [(f.split, f.row, f.id) for f in report.unusable] == [("train", 1, "train-1"), ("held_out", 1, "held-out-1")]
    assert [(f.split, f.row, f.id) for f in report.failing] == [("train", 2, "train-2")]
    text = str(report)
    assert "2 of 5 gold answers score 1" in text
    assert "3 rows left out" in text
    assert "train row 1 [train-1]: bad-gold (the gold answer 'prose' is not a number)" in text


def test_check_can_score_a_reference_instead_of_the_answer():
    rows = [Example("a", "q", "tests", {"solution": "4"})]
    reward = lambda completion, answer, row: float("4" in completion)  # noqa: E731
    assert ExampleTask("toy", rows, [], reward, reference="solution").check().ok
    assert not ExampleTask("toy", rows, [], reward).check().ok


def test_the_gold_template_serves_prefilled_tags():
    toy = task(reward=Gate(Format(prefilled=True), Number()), gold_template="</think><answer>{answer}</answer>")
    assert toy.check().ok
    assert not task(reward=Gate(Format(prefilled=True), Number())).check().ok


def test_constant_baseline_takes_the_answer_from_training_and_scores_it_on_held_out():
    assert task().constant_baseline() == ("4", 0.75)
    assert task(train=("6", "5", "6")).constant_baseline() == ("6", 0.25)


def test_tasks_without_rows_are_refused():
    with pytest.raises(TaskError, match="no training example"):
        task(train=())
    with pytest.raises(TaskError, match="no held-out example"):
        task(held_out=()).constant_baseline()


def test_bad_golds_are_unscored_not_paid():
    toy = task(train=("a prose sentence",))
    (verdict,) = toy.score(["<answer>a prose sentence</answer>"], toy.train)
    assert verdict.status is Status.BAD_GOLD
    assert verdict.reward is None
