"""`phloem doctor` finds what is wrong with data, reward and prompts while no weights are near."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiny_models import tiny_model
from tiny_tokenizers import GEMMA, LLAMA, QWEN, byte_level

from phloem import ConfigError, CreditConfig, EvaluationConfig, ModelConfig, SampleConfig, TaskConfig, TrainConfig
from phloem.cli import main
from phloem.doctor import Finding, Level, Report, examine
from phloem.doctor.findings import SHOWN
from phloem.tasks import Example, ExampleTask

CONTEXT = 512  # of the tiny models


def save_model(folder: Path, template: str | None = QWEN, **options: Any) -> Path:
    """A model folder without weights: whoever needs them fails."""
    tokenizer = byte_level(template, **options)
    tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=CONTEXT).config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("tiny") / "model")


def config(model: Path, **sections: Any) -> TrainConfig:
    base = TrainConfig(
        model=ModelConfig(path=str(model)),
        evaluation=EvaluationConfig(prompts=2),
        sample=SampleConfig(thoughts=2, answers=2, thought_tokens=40, answer_tokens=40),
    )
    return replace(base, **sections)


def own_data(model: Path, path: Path, **args: Any) -> TrainConfig:
    args = {"path": str(path), "reward": "number", **args}
    return config(model, task=TaskConfig("data", args, held_out_size=2))


def problems(count: int, start: int = 0) -> list[Example]:
    return [problem(n) for n in range(start, start + count)]


def problem(n: int) -> Example:
    shown = f"<think>{n}</think><answer>{2 * n}</answer>"
    return Example(f"p{n}", f"<think> {n} + {n}?", str(2 * n), demonstrations=(shown,))


def right(completion: str, answer: Any, row: Any) -> float:
    return float(f"<answer>{answer}</answer>" in completion)


def task(train: Iterable[Example] | None = None, held_out: Iterable[Example] | None = None, reward: Any = right) -> Any:
    train = problems(8) if train is None else list(train)
    return ExampleTask("own", train, problems(4, start=50) if held_out is None else list(held_out), reward)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def sums(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"<think> {n} + {n}?", "answer": str(2 * n)} for n in range(count)]


def found(report: Report, words: str) -> Finding:
    """The one finding that says these words."""
    (finding,) = [finding for finding in report.findings if words in finding.sentence]
    return finding


def assert_only(report: Report, *worrying: Finding) -> None:
    assert [finding for finding in report.findings if finding.level is not Level.OK] == list(worrying)


# ---------------------------------------------------------------------------------------- a run that is well


def test_a_healthy_run_is_well_without_weights(model, capsys):
    words = ["doctor", "--model.path", str(model), "--task.train_size", "50", "--task.held_out_size", "20"]
    assert main([*words, "--evaluation.prompts", "20", "--sample.thought_tokens=80", "--sample.answer_tokens=40"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0] == f"sums with {model}"
    assert lines[-1] == "all is well"
    topics = [line.split()[1] for line in lines if line.startswith("ok ")]
    assert list(dict.fromkeys(topics)) == ["data", "golds", "reward", "credit", "groups", "prompts", "lengths"]
    for words in (
        "50 training and 20 held-out examples",
        "all 70 gold answers earn full marks against themselves",
        "an empty completion earns nothing on any of 20 prompts",
        "grpo-ma: unit segment, baseline level, scale std, share every, normaliser segment, clip 0.2 / 0.2, beta 0",
        "4 thoughts of up to 80 tokens, closed by '</think>', x 4 answers of up to 40; 4 prompts and up to 64 rollouts",
        "chat template; no BOS",
        "completions end with </s> (1), <|eot|> (3); demonstrations are closed by <|eot|>",
    ):
        assert words in captured.out
    assert "  | Think inside <think> tags, then answer inside <answer> tags.<|eot|>" in lines


def test_the_rule_and_shape_are_resolved(model):
    plain = SampleConfig(thoughts=16, answers=1, top_p=0.9, thought_tokens=30, answer_tokens=10)
    report = examine(config(model, sample=plain, credit=CreditConfig("grpo", beta=0.1, clip=False)), task())
    assert "unit rollout, baseline group" in found(report, "grpo:").sentence
    assert found(report, "grpo:").sentence.endswith("no clipping, beta 0.1")
    assert found(report, "rollouts a step").sentence.startswith("16 rollouts of up to 40 tokens")
    assert_only(report, found(report, "narrower policy"))


# ----------------------------------------------------------------------------------------------------- data


def test_a_missing_column_lists_those_found(model, tmp_path, capsys):
    """C01."""
    path = write(tmp_path / "rows.jsonl", sums(8))
    report = examine(own_data(model, path, prompt="question"))
    finding = found(report, "no column 'question'; it has prompt, answer")
    assert (finding.level, finding.topic) == (Level.FAIL, "data")
    assert found(report, "completions end with").level is Level.OK  # what does not need the data is still looked at
    words = ["--task.name", "data", f"--task.args.path={path}", "--task.args.reward=number", "--model.path", str(model)]
    assert main(["doctor", *words, "--task.args.prompt=question"]) == 1
    captured = capsys.readouterr()
    assert "it has prompt, answer. Set task.args.prompt to one of them" in captured.out
    assert captured.err == "phloem: a run could not use all of this: see `fail` above\n"


def test_empty_rows(model, tmp_path):
    path = write(tmp_path / "rows.jsonl", [*sums(8), {"prompt": " ", "answer": "1"}, {"prompt": "x", "answer": None}])
    report = examine(own_data(model, path))
    assert found(report, "1 of 10 rows have an empty prompt: rows 9").level is Level.FAIL
    dropped = examine(own_data(model, path, unusable="drop"))
    assert found(dropped, "empty prompt: rows 9").level is Level.WARN
    assert found(dropped, "empty answer: rows 10").level is Level.WARN
    assert dropped.ok


def test_empty_prompts_and_answers_of_a_task_of_ones_own(model):
    bare = Example("bare", ({"role": "user", "content": "\n"},), "1")
    report = examine(config(model), task([*problems(4), bare, Example("void", "4?", [])]))
    assert found(report, "an empty prompt").rows == ("bare",)
    assert found(report, "an empty answer").rows == ("void",)
    assert not report.ok


def test_rows_on_both_sides_of_the_split(model, tmp_path):
    shared = [replace(example, id=f"again {example.id}", prompt=f"{example.prompt}\n") for example in problems(2)]
    finding = found(examine(config(model), task(held_out=[*problems(3, start=50), *shared])), "that is held out")
    assert (finding.level, finding.rows) == (Level.FAIL, ("p0", "p1"))
    path, held_out = write(tmp_path / "rows.jsonl", sums(8)), write(tmp_path / "test.jsonl", sums(2))
    left_out = examine(own_data(model, path, held_out_path=str(held_out)))
    assert found(left_out, "2 training rows have a prompt that is held out").level is Level.WARN
    assert found(left_out, "no training prompt is held out").level is Level.OK
    refused = examine(own_data(model, path, held_out_path=str(held_out), overlap="refuse"))
    assert found(refused, "2 training rows have a prompt that is held out").level is Level.FAIL


def test_repeated_rows_and_rows_that_contradict(model):
    one, two, three, *rest = problems(8)
    again = replace(one, id="again", prompt=f" {one.prompt} ")
    other = replace(two, id="other", answer="-1", demonstrations=())
    report = examine(config(model), task([one, two, three, *rest, again, other]))
    repeated = found(report, "1 training rows repeat the prompt and answer of another")
    torn = found(report, "1 training prompts stand in several rows with different answers")
    assert (repeated.rows, torn.rows) == (("p0, again",), ("p1, other",))
    assert_only(report, torn, repeated)
    assert report.ok


# ------------------------------------------------------------------------------------------ golds and reward


@pytest.mark.parametrize("reward", ["math", "number"])
def test_a_prose_gold_is_reported_before_training(model, tmp_path, capsys, reward):
    """B07: it is never paid, and never silently left out."""
    rows = sums(8)
    rows[4]["answer"] = "It depends on how the problem is read, as several readings are possible."
    path = write(tmp_path / "rows.jsonl", rows)
    finding = found(examine(own_data(model, path, reward=reward)), "1 of 8 gold answers are unusable")
    assert finding.level is Level.FAIL
    (row,) = finding.rows
    assert row.startswith(("rows:5 (train): bad-gold", "rows:5 (held_out): bad-gold"))
    words = [f"--task.args.path={path}", f"--task.args.reward={reward}", "--task.held_out_size=2"]
    assert main(["doctor", "--task.name=data", *words, "--evaluation.prompts=2", f"--model.path={model}"]) == 1
    assert row in capsys.readouterr().out


def test_of_many_unusable_golds_the_first_are_listed_and_the_others_counted(model):
    def judge(completion: str, answer: Any, row: Any) -> float:
        return 0.0

    finding = found(examine(config(model), task(problems(40), reward=judge)), "gold answers earn nothing")
    assert finding.level is Level.FAIL
    assert len(finding.rows) == SHOWN + 1
    assert finding.rows[0] == "p0 (train): wrong, reward 0"
    assert finding.rows[-1] == f"... and {44 - SHOWN} more"


def test_golds_that_earn_a_part_are_worth_a_look(model):
    report = examine(config(model), task(reward=lambda *of: 0.5 * right(*of)))
    finding = found(report, "12 of 12 gold answers earn less than 1")
    assert finding.level is Level.WARN
    assert report.ok


def test_a_reward_that_raises_shows_why(model):
    def judge(completion: str, answer: Any, row: Any) -> float:
        raise KeyError("solution")

    report = examine(config(model), task(reward=judge))
    assert "KeyError: 'solution'" in found(report, "gold answers earn nothing").rows[0]
    assert not report.ok


def test_a_reward_that_gives_no_number_is_a_finding_and_the_rest_is_still_looked_at(model):
    report = examine(config(model), task(reward=lambda completion, answer, row: "1"))
    assert {f.topic for f in report.findings if f.level is Level.FAIL} == {"golds", "reward"}
    assert found(report, "completions end with").level is Level.OK


@pytest.mark.parametrize(
    ("judge", "level", "words"),
    [
        (lambda completion: completion.index("<answer>"), Level.FAIL, "breaks on an empty completion (4 of 4 prompts)"),
        (lambda completion: 1.0 if completion else None, Level.WARN, "is not scored on 4 of 4 prompts"),
        (lambda completion: 1.0 if completion else 0.25, Level.WARN, "earns up to 0.25 on 4 of 4 prompts"),
    ],
)
def test_what_an_empty_completion_earns(model, judge, level, words):
    report = examine(config(model), task(reward=lambda completion, answer, row: judge(completion)))
    assert found(report, words).level is level


def test_a_constant_answer_that_earns_much(model):
    same = [replace(example, answer="7", demonstrations=()) for example in problems(8)]
    held_out = [*(replace(example, answer="7") for example in problems(3, start=50)), *problems(1, start=60)]
    finding = found(examine(config(model), task(same, held_out)), "always answering '7'")
    assert finding.level is Level.WARN
    assert "earns 0.750 on held-out prompts" in finding.sentence


# -------------------------------------------------------------------------------------------------- prompts


def test_template_and_tokenizer_both_write_a_bos(tmp_path):
    """A30: a row has one, and the doctor says whose was kept."""
    report = examine(config(save_model(tmp_path / "twice", LLAMA, adds_bos=True)), task())
    assert "one BOS <s> (0); the tokenizer would add a second one, which is kept out" in found(report, "BOS").sentence
    assert str(report.prompt).count("<s>") == 1
    once = examine(config(save_model(tmp_path / "once", LLAMA, adds_bos=False)), task())
    assert found(once, "BOS").sentence == "chat template; one BOS <s> (0)"
    plain = TaskConfig(chat_template=False)
    without = examine(config(save_model(tmp_path / "plain", None, adds_bos=True), task=plain), task())
    assert found(without, "BOS").sentence == "plain text; one BOS <s> (0)"
    every = examine(config(save_model(tmp_path / "every", QWEN, bos="<|start|>")), task())
    assert found(every, "BOS").sentence == "chat template; BOS <|start|> (2) 2 times: it opens every message"


def test_a_bos_or_a_whole_template_in_the_data(tmp_path):
    model = save_model(tmp_path / "model", LLAMA)
    dressed = [replace(example, prompt=f"<s>{example.prompt}") for example in problems(2)]
    report = examine(config(model), task([*dressed, *problems(6, start=2)]))
    finding = found(report, "2 prompts hold special tokens as text: <s>")
    assert (finding.level, finding.rows) == (Level.WARN, ("p0", "p1"))
    assert "the chat template is put around it here" in finding.remedy
    assert "the text holds it too" in found(report, "2 times").sentence
    plain = config(save_model(tmp_path / "plain", None, adds_bos=True), task=TaskConfig(chat_template=False))
    assert examine(plain, task([*dressed, *problems(6, start=2)])).of(Level.WARN) == []  # one at the start is the row's
    inside = [replace(example, prompt=f"<s>{example.prompt}<s>") for example in problems(1)]
    assert found(examine(plain, task([*inside, *problems(6, start=2)])), "special tokens").rows == ("p0",)


@pytest.mark.parametrize(
    ("template", "system", "words"),
    [(None, None, "the tokenizer has no chat template"), (GEMMA, "Be brief.", "the chat template refuses messages")],
)
def test_prompts_that_cannot_be_rendered(tmp_path, template, system, words):
    model = save_model(tmp_path / "model", template)
    report = examine(config(model, task=TaskConfig(system_prompt=system)), task())
    assert (found(report, words).level, report.prompt) == (Level.FAIL, None)


def test_a_model_that_is_not_there_is_a_finding(tmp_path):
    assert found(examine(config(tmp_path / "nowhere"), task()), "does not exist").level is Level.FAIL


def test_a_closing_tag_that_nobody_shows(model):
    silent = [replace(example, prompt="4?", id=f"s{n}", demonstrations=()) for n, example in enumerate(problems(4))]
    held_out = problems(2, start=50)
    finding = found(examine(config(model), task(silent, held_out)), "neither the prompt nor a demonstration shows")
    assert finding.level is Level.WARN
    wrong = [replace(example, demonstrations=("<answer>1</answer>",)) for example in problems(4)]
    report = examine(config(model), task([*problems(4, start=10), *wrong], held_out))
    assert found(report, "4 of 8 demonstrations lack sample.fork_at '</think>'").level is Level.WARN
    plain = SampleConfig(thoughts=4, answers=1, thought_tokens=40, answer_tokens=40)
    assert_only(examine(config(model, sample=plain), task(wrong, held_out)))


# -------------------------------------------------------------------------------------------------- lengths


def test_prompts_longer_than_the_context_leaves_room_for(model):
    long = Example("long", f"<think> {'x' * (CONTEXT - 90)}", "1")
    report = examine(config(model), task([*problems(4), long]))
    finding = found(report, "beside completions of 80 there is room for 432, and 1 prompts are longer")
    assert finding.level is Level.FAIL
    tokens = len(long.prompt) + len("user\n\nassistant\n") - 1 + 3  # bytes, `an` is one, and three special tokens
    assert finding.rows == (f"long: {tokens} tokens",)
    roomy = SampleConfig(thoughts=2, answers=2, thought_tokens=40, answer_tokens=CONTEXT - tokens - 40)
    assert examine(config(model, sample=roomy), task([*problems(4), long])).ok


def test_demonstrations_and_golds_against_the_budgets(model):
    tight = config(model, sample=SampleConfig(thoughts=2, answers=2, thought_tokens=15, answer_tokens=25))
    wordy = replace(problems(1)[0], id="wordy", demonstrations=(f"<think>{'y' * 10}</think><answer>0</answer>",))
    report = examine(tight, task([*problems(3), wordy]))
    thoughts = found(report, "thoughts of demonstrations")
    assert thoughts.level is Level.WARN
    assert thoughts.sentence.endswith("of 15 tokens; 25.0% are over sample.thought_tokens")
    assert found(report, "answers of demonstrations").level is Level.OK
    bare = [replace(example, demonstrations=()) for example in problems(3)]
    golds = found(examine(tight, task([*bare, Example("g", "<think>", "1" * 30)])), "gold answers in their tags")
    assert golds.sentence.endswith("12.5% are over sample.answer_tokens")
    plain = SampleConfig(thoughts=4, answers=1, thought_tokens=10, answer_tokens=10)
    whole = found(examine(config(model, sample=plain), task()), "demonstrations:")
    assert whole.sentence.endswith("100.0% are over sample.thought_tokens + sample.answer_tokens")


# --------------------------------------------------------------------------------------------- as a command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sample.thougts", "3"], "did you mean sample.thoughts?"),
        (["--credit.preset", "grpo_ma"], "did you mean 'grpo-ma'"),
        (["--task.name", "smus"], "did you mean sums?"),
        (["--evaluation.prompts", "20", "--task.held_out_size", "10"], "raise task.held_out_size"),
        (["--task.train_size", "2"], "2 training examples and optim.prompts_per_step is 4"),
        (["--print_config"], "phloem doctor takes no --print_config"),
        (["--config", "nowhere.yaml"], "nowhere.yaml cannot be read"),
    ],
)
def test_settings_that_cannot_be_honoured_are_status_2(capsys, words, message):
    assert main(["doctor", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_configuration_errors_are_raised_from_python(model):
    with pytest.raises(ConfigError, match="held-out examples and evaluation"):
        examine(config(model, evaluation=EvaluationConfig(prompts=100)), task())


def test_help_says_what_the_exit_status_means(capsys):
    assert main(["doctor", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--config FILE" in out
    assert all(f"{status}" in out for status in ("Exit status 0:", "1: something is unusable", "2: settings"))


def test_a_terminal_shows_the_same_sentences(model):
    report = examine(config(model), task(reward=lambda completion, answer, row: completion.index("<answer>") * 1.0))
    console = Console(force_terminal=True, width=300, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report)
    shown = console.export_text()
    for finding in report.findings:
        assert finding.sentence in shown
        assert finding.remedy in shown
        assert all(row in shown for row in finding.rows)
    assert "<|start|>user" in shown
    assert f"{len(report.of(Level.FAIL))} unusable" in shown


def test_a_long_prompt_is_shown_by_its_two_ends():
    report = Report("t", (), "\n".join(f"line {n}" for n in range(100)))
    shown = str(report)
    assert "line 0\n" in shown
    assert "line 99\n" in shown
    assert "line 50\n" not in shown
    assert "... 84 lines ..." in shown
