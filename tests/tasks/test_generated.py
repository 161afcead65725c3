"""The generated tasks: disjoint splits, exact golds, demonstrations that leave the answer open."""

import re

import pytest

from phloem.config import TaskConfig
from phloem.kinds import ConfigError
from phloem.rewards import extract_answer, parse_format
from phloem.tasks import GENERATED, TaskError, get, names


def question(example):
    return example.prompt if isinstance(example.prompt, str) else example.prompt[-1]["content"]


@pytest.fixture(scope="module", params=list(GENERATED))
def task(request):
    return get(TaskConfig(name=request.param, train_size=None), seed=1)


def test_sizes_and_no_question_twice(task):
    assert len(task.held_out) == 256
    assert len(task.train) >= 300
    questions = [question(example) for example in [*task.train, *task.held_out]]
    assert len(set(questions)) == len(questions)


def test_golds_score_one_and_the_constant_baseline_is_known(task):
    assert task.check().ok
    baseline = task.constant_baseline()
    assert 0 <= baseline.reward < (0.8 if task.name == "letter-count" else 0.15)


def test_demonstrations_are_well_formed_right_and_leave_the_answer_open(task):
    for example in task.train[:200]:
        assert len(set(example.demonstrations)) == 2
        for text, verdict in zip(
            example.demonstrations, task.score(example.demonstrations, [example] * 2), strict=True
        ):
            assert verdict.reward == 1
            thought, answer = parse_format(text)
            assert answer == example.answer
            assert not thought.endswith(f"= {answer}")
            assert len(thought.split()) <= 16
    assert not any(example.demonstrations for example in task.held_out), "nobody trains on held-out rows by accident"


def test_the_wrong_format_earns_nothing(task):
    example = task.train[0]
    completions = [f"<answer>{example.answer}</answer>", str(example.answer)]
    assert [verdict.reward for verdict in task.score(completions, [example] * 2)] == [0, 0]


def test_seeds_move_the_training_rows_only():
    one, same, other = (get(TaskConfig(train_size=64), seed=seed) for seed in (1, 1, 2))
    assert one.train == same.train
    assert one.train != other.train
    assert one.held_out == other.held_out
    styled = get(TaskConfig(args={"style": "partial"}), seed=1)
    assert [question(example) for example in styled.held_out] == [question(example) for example in one.held_out]


def test_mirrored_sums_are_on_the_same_side():
    sums = get(TaskConfig(train_size=3000, held_out_size=400))
    held_out = {frozenset((example.row["a"], example.row["b"])) for example in sums.held_out}
    assert not held_out & {frozenset((example.row["a"], example.row["b"])) for example in sums.train}


@pytest.mark.parametrize(
    ("style", "pattern"),
    [
        ("plan", r"^(first )?\d+ \+ \d+ (and|then) \d+ \+ \d+$"),
        ("half", r"^(first )?\d+ \+ \d+ = \d+ (and|then) \d+ \+ \d+$"),
        ("partial", r"^\d+ \+ \d+ = \d+(,| and) \d+ \+ \d+ = \d+$"),
    ],
)
def test_styles_of_sums(style, pattern):
    for example in get(TaskConfig(args={"style": style}, train_size=100)).train:
        for text in example.demonstrations:
            assert re.search(pattern, parse_format(text).thought)
            terms = sum(int(n) for pair in re.findall(r"(\d+) \+ (\d+)", text) for n in pair)
            assert terms == int(extract_answer(text))


def test_restated_sums_do_not_state_the_answer():
    for name in ("sums", "products"):
        for digits in (2, 3) if name == "products" else (1, 2, 3):
            sizes = {"train_size": 30, "held_out_size": 1}
            for example in get(TaskConfig(name, {"digits": digits}, **sizes)).train:
                for text in example.demonstrations:
                    thought = parse_format(text).thought
                    assert example.answer not in re.findall(r"\d+", thought)
                    assert str(example.row["a"]) in thought
                    if "more than" in thought:
                        assert int(thought.split()[-1]) < int(example.answer)


def test_digits():
    sums = get(TaskConfig(args={"digits": 4}, train_size=100))
    assert all(re.fullmatch(r"What is \d{4} \+ \d{4}\?", question(example)) for example in sums.train)
    products = get(TaskConfig(name="products", args={"digits": 3}, train_size=100))
    assert all(example.row["a"] * example.row["b"] == int(example.answer) for example in products.train)


def test_the_format_is_asked_for_in_the_system_message_or_the_question():
    (system, user) = get(TaskConfig(train_size=8)).train[0].prompt
    assert (system["role"], user["role"]) == ("system", "user")
    assert "<think>" in system["content"]
    for config in (
        TaskConfig(train_size=8, args={"instruction_role": "user"}),
        TaskConfig(train_size=8, system_prompt="You are terse."),
    ):
        prompt = get(config).train[0].prompt
        assert prompt == f"{user['content']} {system['content']}"
    assert get(TaskConfig(train_size=8, args={"instruction": ""})).train[0].prompt == user["content"]


def test_the_format_reward_is_added_with_its_weight():
    task = get(TaskConfig(train_size=8, format_weight=0.25))
    example = task.train[0]
    completions = [f"<think>a</think><answer>{text}</answer>" for text in (example.answer, "-1")]
    assert [verdict.reward for verdict in task.score([*completions, ""], [example] * 3)] == [1.25, 0.25, 0]
    assert task.check().ok


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "sumz"}, "did you mean sums"),
        ({"args": {"digit": 2}}, r"task.args.digit is not an argument.*digits, style"),
        ({"args": {"digits": "2"}}, r"task.args.digits is '2'; it takes a whole number"),
        ({"args": {"style": "fancy"}}, "one of restate, plan, half, partial, mixed"),
        ({"system_prompt": "x", "args": {"instruction_role": "system"}}, "instruction_role must be user"),
        ({"name": "data", "args": {"path": "x.jsonl"}}, "task.args.reward is needed"),
    ],
)
def test_settings_that_cannot_be_honoured(config, message):
    with pytest.raises(ConfigError, match=message):
        get(TaskConfig(**config))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"args": {"digits": 0}}, "digits is 0"),
        ({"args": {"digits": 1, "style": "half"}}, "would state the answer"),
        ({"name": "products", "args": {"digits": 1}}, r"fewer than task.held_out_size 256"),
        ({"name": "products", "train_size": 500}, r"fewer than task.train_size 500"),
        ({"name": "last-word", "args": {"words": 1}}, "words is 1"),
    ],
)
def test_problems_there_are_not_enough_of(config, message):
    with pytest.raises(TaskError, match=message):
        get(TaskConfig(**config))


def test_names_have_one_line_each():
    lines = names()
    assert set(GENERATED) < set(lines)
    assert all(line and "\n" not in line and len(line) < 120 for line in lines.values())
