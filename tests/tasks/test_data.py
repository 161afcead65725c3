"""Own data: columns, splits, filters, and every way it can be wrong before a model loads."""

import csv
import json
import os
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from phloem.config import TaskConfig
from phloem.kinds import ConfigError
from phloem.rewards import RewardError
from phloem.tasks import TaskError, get


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def sums(count, start=0):
    return [
        {"prompt": f"What is {i} + {i}?", "answer": str(2 * i), "level": i % 3} for i in range(start, start + count)
    ]


def load(path, *, held_out_size=4, seed=0, train_size=None, system_prompt=None, **args):
    args = {"path": path, "reward": "number", **args}
    return get(TaskConfig("data", args, train_size, held_out_size, system_prompt), seed=seed)


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
def test_every_kind_of_file(tmp_path, ending):
    task = load(write(tmp_path / f"rows.{ending}", sums(20)))
    assert (len(task.train), len(task.held_out)) == (16, 4)
    assert task.check().ok
    assert sorted(int(example.answer) for example in [*task.train, *task.held_out]) == list(range(0, 40, 2))
    assert {example.row["prompt"] for example in task.train} == {example.prompt for example in task.train}


def test_other_columns_demonstrations_and_template(tmp_path):
    rows = [
        {"problem": f"{i} + 1?", "gold": i + 1, "worked": [f"<answer>{i + 1}</answer>"], "hint": "{add}"}
        for i in range(8)
    ]
    task = load(
        write(tmp_path / "rows.jsonl", rows),
        prompt="problem",
        answer="gold",
        demonstrations="worked",
        template="{prompt} ({hint}) Use {{braces}}.",
    )
    example = task.train[0]
    assert example.prompt == f"{example.row['problem']} ({{add}}) Use {{braces}}."
    assert example.demonstrations == (f"<answer>{example.answer}</answer>",)
    assert type(example.answer) is int


def test_conversations(tmp_path):
    rows = [
        {
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{i}?"}],
            "answer": i,
        }
        for i in range(8)
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    system, user = load(path, template="Say: {prompt}").train[0].prompt
    assert system == {"role": "system", "content": "Be brief."}
    assert user["content"].startswith("Say: ")
    with pytest.raises(ConfigError, match="drop one of the two"):
        load(path, system_prompt="Be long.")
    held_out = load(write(tmp_path / "plain.jsonl", sums(8)), held_out_path=path).held_out
    assert held_out[0].prompt[0]["role"] == "system"
    with pytest.raises(ConfigError, match="drop one of the two"):
        load(str(tmp_path / "plain.jsonl"), held_out_path=path, system_prompt="Be long.")
    with pytest.raises(TaskError, match="row 1: the prompt is a conversation"):
        load(path, instruction="Use tags.")
    parquet = write(tmp_path / "rows.parquet", rows)
    assert load(parquet).train[0].prompt == load(path).train[0].prompt


def test_roles_that_few_templates_know_are_said(tmp_path):
    messages = [{"role": "wizard", "content": "?"}, {"role": "user", "content": "1?"}]
    rows = [*sums(8), {"prompt": messages, "answer": "1"}]
    notes = load(write(tmp_path / "rows.jsonl", rows)).notes
    assert "1 of 9 rows have messages of the role 'wizard'" in notes[0]


def test_a_user_who_says_nothing_and_a_number_that_is_none_are_empty(tmp_path):
    silent = [{"role": "user", "content": " "}]
    rows = [*sums(8), {"prompt": silent, "answer": "1"}, {"prompt": "1?", "answer": float("nan")}]
    path = write(tmp_path / "rows.jsonl", rows)
    assert [note.partition(": ")[2] for note in load(path, unusable="drop").notes] == [
        "1 of 10 rows have an empty prompt: rows 9; left out",
        "1 of 10 rows have an empty answer: rows 10; left out",
    ]


@pytest.mark.parametrize("answer", [date(2026, 1, 2), b"\xff", Decimal("1.5"), {"a": {"b": [1]}}, [True, None]])
def test_whatever_a_table_holds_can_be_an_answer(tmp_path, answer):
    rows = [{"prompt": f"{i}?", "answer": answer} for i in range(8)]
    (tmp_path / "mine.py").write_text("def equal(answer, row): return answer == row['answer']\n")
    task = load(write(tmp_path / "rows.parquet", rows), reward=f"{tmp_path}/mine.py:equal")
    assert task.check().ok
    assert task.constant_baseline().reward == 1.0


@pytest.mark.parametrize("template", ["{prompt:d}", "{prompt!z}", "{prompt} {level:%Y}"])
def test_a_template_that_cannot_be_filled_is_named(tmp_path, template):
    with pytest.raises(TaskError, match=r"task\.args\.template .* cannot be filled with .*rows\.jsonl row 1"):
        load(write(tmp_path / "rows.jsonl", sums(8)), template=template)


def test_a_gold_template_has_a_place_for_the_answer(tmp_path):
    with pytest.raises(ConfigError, match=r"task\.args\.gold_template is 'x'; it has no \{answer\}"):
        load(write(tmp_path / "rows.jsonl", sums(8)), gold_template="x")


def test_the_instruction_is_off_unless_given(tmp_path):
    path = write(tmp_path / "rows.jsonl", sums(8))
    assert load(path).train[0].prompt.endswith("?")
    assert load(path, instruction="Use tags.", instruction_role="user").train[0].prompt.endswith("? Use tags.")


def test_the_split_stays_when_the_runs_seed_moves(tmp_path):
    path = write(tmp_path / "rows.jsonl", sums(30))
    one, two, other = load(path, seed=1), load(path, seed=2), load(path, split_seed=5)
    assert one.held_out == two.held_out
    assert one.held_out != other.held_out
    assert not {example.id for example in one.train} & {example.id for example in one.held_out}
    assert load(path, train_size=5).train == one.train[:5]


def test_held_out_rows_from_another_file_keep_apart(tmp_path):
    path, held_out = write(tmp_path / "train.jsonl", sums(20)), write(tmp_path / "test.jsonl", sums(6, start=17))
    task = load(path, held_out_path=held_out, held_out_size=6)
    assert (len(task.train), len(task.held_out)) == (17, 6)
    assert "3 training rows have a prompt that is held out" in task.notes[0]
    with pytest.raises(TaskError, match=r"3 training rows have a prompt that is held out: train:\d+"):
        load(path, held_out_path=held_out, held_out_size=6, overlap="refuse")
    assert (
        "6 held-out rows, fewer than task.held_out_size 9"
        in load(path, held_out_path=held_out, held_out_size=9).notes[0]
    )


def test_files_have_no_splits(tmp_path):
    with pytest.raises(TaskError, match=r"set task.args.held_out_path"):
        load(write(tmp_path / "train.jsonl", sums(20)), held_out_split="test")


def test_repeated_prompts_never_straddle_the_split(tmp_path):
    rows = [*sums(10), *({**row, "prompt": row["prompt"].replace(" ", "  ")} for row in sums(10))]
    task = load(write(tmp_path / "rows.jsonl", rows), held_out_size=4)
    assert len(task.train) == 12
    held = {" ".join(example.prompt.split()) for example in task.held_out}
    assert len(held) == 4
    assert not held & {" ".join(example.prompt.split()) for example in task.train}


def test_filters_by_length(tmp_path):
    rows = [*sums(10), {"prompt": "x" * 50, "answer": "1", "level": 0}, {"prompt": "y", "answer": "1" * 9, "level": 0}]
    path = write(tmp_path / "rows.jsonl", rows)
    task = load(path, max_prompt_characters=40, max_answer_characters=5)
    assert len(task.train) + len(task.held_out) == 10
    assert "2 of 12 rows are longer" in task.notes[0]


def test_a_missing_column_lists_those_found(tmp_path):
    path = write(tmp_path / "rows.jsonl", sums(8))
    with pytest.raises(TaskError, match=r"no column 'question'; it has prompt, answer, level. Set task.args.prompt"):
        load(path, prompt="question")
    with pytest.raises(TaskError, match=r"no column 'gold'.*task.args.answer"):
        load(path, answer="gold")
    with pytest.raises(TaskError, match=r"asks for \{lvl\}; .* has prompt, answer, level"):
        load(path, template="{prompt} {lvl}")
    with pytest.raises(TaskError, match=r"has no \{prompt\}"):
        load(path, template="{level}")


def test_empty_prompts_and_answers_are_named_by_row(tmp_path):
    rows = sums(10)
    rows[2]["prompt"], rows[5]["prompt"], rows[7]["answer"] = "  ", None, ""
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(TaskError, match=r"2 of 10 rows have an empty prompt: rows 3, 6. .*unusable to drop"):
        load(path)
    task = load(path, unusable="drop")
    assert len(task.train) + len(task.held_out) == 7
    assert "empty answer: rows 8" in task.notes[1]


@pytest.mark.parametrize(("count", "held_out_size"), [(1, 1), (4, 4), (3, 10)])
def test_too_few_rows(tmp_path, count, held_out_size):
    path = write(tmp_path / "rows.jsonl", sums(count))
    with pytest.raises(TaskError, match=r"too few to hold out|Lower task.held_out_size"):
        load(path, held_out_size=held_out_size)
    with pytest.raises(TaskError, match=r"fewer than task.train_size 50"):
        load(write(tmp_path / "more.jsonl", sums(20)), train_size=50)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.jsonl", "", "has no rows"),
        ("rows.jsonl", '{"prompt": 1}\n{"prompt": \n', "line 2 is not JSON"),
        ("rows.jsonl", "[1]\n", "line 1 is not an object"),
        ("rows.jsonl", '{"prompt": "a\\ud800", "answer": 1}\n', "row 1 holds text that is not Unicode"),
        ("rows.jsonl", '{"prompt": "a", "answer": ["\\udfff"]}\n', "row 1 holds text that is not Unicode"),
        ("rows.json", '{"prompt": "a"}', "must hold a list"),
        ("rows.csv", "prompt,answer\na,1\nb\n", "row 2 has more or fewer fields"),
        ("rows.csv", 'prompt,answer\n"a"b,1\n', "line 2 is not CSV"),
        ("rows.csv", "prompt,answer,answer\na,1,2\n", "has two columns called 'answer'"),
        ("rows.parquet", "not parquet", "cannot be read as parquet"),
        ("rows.txt", "a", "its ending is none of"),
        ("rows.jsonl", '{"prompt": 7, "answer": 1}\n', "row 1: a prompt is a text or a list"),
        ("rows.jsonl", '{"prompt": [{"role": "user"}], "answer": 1}\n', "row 1: a message needs"),
        (
            "rows.jsonl",
            '{"prompt": [{"role": "assistant", "content": "a"}], "answer": 1}\n',
            "a prompt ends with the user's",
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(TaskError, match=message):
        load(str(tmp_path / name))


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv"])
def test_a_file_in_another_encoding_is_named(tmp_path, ending):
    (tmp_path / f"rows.{ending}").write_text('{"prompt": "caf\xe9", "answer": 1}\n', encoding="latin-1")
    with pytest.raises(TaskError, match=rf"rows\.{ending} is not UTF-8 text"):
        load(str(tmp_path / f"rows.{ending}"))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TaskError, match="no file"):
        load(str(tmp_path / "nowhere.jsonl"))


def test_own_rewards_get_the_row(tmp_path):
    (tmp_path / "mine.py").write_text("def by_level(completion, answer, row):\n    return row['level'] / 2\n")
    task = load(write(tmp_path / "rows.jsonl", sums(9)), reward=f"{tmp_path}/mine.py:by_level")
    verdicts = task.score([""] * len(task.train), task.train)
    assert [verdict.reward for verdict in verdicts] == [example.row["level"] / 2 for example in task.train]
    assert not task.check().ok
    with pytest.raises(RewardError, match="no reward 'numbr'"):
        load(write(tmp_path / "rows.jsonl", sums(9)), reward="numbr")
    with pytest.raises(ConfigError, match=r"task\.args\.overlap is 'keep'"):
        load(write(tmp_path / "rows.jsonl", sums(9)), overlap="keep")


def test_reward_arguments(tmp_path):
    path = write(tmp_path / "rows.jsonl", sums(9))
    task = load(path, reward_args={"relative_tolerance": 0.1})
    example = next(example for example in task.train if example.answer != "0")
    near = 1.05 * int(example.answer)
    assert task.score([f"<answer>{near}</answer>"], [example])[0].reward == 1


@pytest.mark.parametrize(
    ("file", "reward"),
    [("gsm8k_test.jsonl", "number"), ("svamp.jsonl", "number"), ("mawps.jsonl", "number"), ("math500.jsonl", "exact")],
)
def test_golds_of_real_data(file, reward):
    folder = os.environ.get("PHLOEM_TEST_DATA")
    if folder is None:
        pytest.skip("set PHLOEM_TEST_DATA to a folder with gsm8k_test.jsonl, svamp.jsonl, mawps.jsonl, math500.jsonl")
    task = load(str(Path(folder) / file), prompt="problem", reward=reward, held_out_size=64)
    report = task.check()
    assert report.ok, str(report)
    assert task.constant_baseline().reward < 0.15


def test_answers_from_several_columns_and_a_reference(tmp_path):
    rows = [{"prompt": f"{i}", "test": f"f() == {i}", "name": "f", "solution": f"return {i}"} for i in range(6)]
    source = "def same(completion, answer):\n    return float(answer['check'][-1:] in completion)\n"
    (tmp_path / "mine.py").write_text(source)
    path = write(tmp_path / "rows.jsonl", rows)
    columns = {"check": "test", "entry_point": "name"}
    task = load(path, reward=f"{tmp_path}/mine.py:same", answer_columns=columns, reference="solution", held_out_size=2)
    assert task.train[0].answer == {"check": task.train[0].row["test"], "entry_point": "f"}
    assert task.check().ok
    with pytest.raises(TaskError, match=r"no column 'tests'.*task.args.answer_columns.check"):
        load(path, answer_columns={"check": "tests"})


@pytest.mark.parametrize(("count", "size"), [(5, 1), (120, 12), (4000, 256)])
def test_without_a_word_a_tenth_is_held_out_and_said_so(tmp_path, count, size):
    task = load(write(tmp_path / "rows.jsonl", sums(count)), held_out_size=None)
    assert (len(task.train), len(task.held_out)) == (count - size, size)
    assert f"{size} of {count} rows are held out; task.held_out_size sets another number" in task.notes[0]


def test_a_share_is_held_out(tmp_path):
    path = write(tmp_path / "rows.jsonl", sums(40))
    task = load(path, held_out_size=None, held_out_fraction=0.25)
    assert (len(task.train), len(task.held_out), task.notes) == (30, 10, ())
    with pytest.raises(ConfigError, match=r"held_out_fraction and task\.held_out_size both say what is held out"):
        load(path, held_out_size=4, held_out_fraction=0.25)
    with pytest.raises(ConfigError, match=r"held_out_fraction and task\.args\.held_out_path both say"):
        load(path, held_out_size=None, held_out_fraction=0.25, held_out_path=path)
    with pytest.raises(ConfigError, match=r"held_out_fraction is 1\.0; it must be between 0 and 1"):
        load(path, held_out_size=None, held_out_fraction=1.0)


def test_an_answer_after_a_mark(tmp_path):
    rows = [{"prompt": f"{i} + 1?", "answer": f"#### no: {i} and 1\n#### {i + 1}"} for i in range(8)]
    task = load(write(tmp_path / "rows.jsonl", rows), answer_after="####")
    assert all(e.prompt == f"{int(e.answer) - 1} + 1?" for e in task.train)
    rows[2]["answer"] = "three"
    with pytest.raises(TaskError, match=r"1 of 8 rows have an empty answer: rows 3\."):
        load(write(tmp_path / "rows.jsonl", rows), answer_after="####")
