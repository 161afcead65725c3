"""Settings hold what they say, and YAML holds settings."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem import ConfigError, TrainConfig, load_config, to_yaml
from phloem.config import (
    CreditConfig,
    EvaluateConfig,
    EvaluationConfig,
    ForkConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    TaskConfig,
)
from phloem.kinds import coerce, in_words, is_optional, type_hints
from phloem.settings import nearest, resolve, sections, settings

# --------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("value", "kind", "result"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (True, bool, True),
        (None, int | None, None),
        ([1, 2], tuple[float, float], (1.0, 2.0)),
        (["a"], tuple[str, ...], ("a",)),
        ([], tuple[str, ...], ()),
        ("dense", Literal["dense", "paths"], "dense"),
        ({"digits": "2"}, dict[str, Any], {"digits": "2"}),
    ],
)
def test_values_that_fit(value, kind, result):
    converted = coerce("x", value, kind)
    assert converted == result
    assert type(converted) is type(result)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (3.0, int, "a whole number"),
        (True, int, "a whole number"),
        ("3", int, "a whole number"),
        (None, int, "a whole number"),
        (True, float, "a number"),
        (float("nan"), float, "a number"),
        (float("inf"), float | None, "a number or null"),
        (1, bool, "true or false"),
        (3, str, "text"),
        (True, Literal[0, 1], "one of 0, 1"),
        ("fp32", Literal["float32", "bfloat16"] | None, "one of float32, bfloat16 or null"),
        ([1], tuple[float, float], "a list of 2 numbers"),
        ("ab", tuple[str, ...], "a list of texts"),
        ([1, "a"], tuple[float, float], "a list of 2 numbers"),
        ({1: 2}, dict[str, Any], "a mapping"),
    ],
)
def test_values_that_do_not_fit_are_refused_in_words(value, kind, words):
    with pytest.raises(ConfigError, match=r"^a\.b is .*; it takes " + words + "$"):
        coerce("a.b", value, kind)


def test_python_is_held_to_the_same_types(tmp_path):
    with pytest.raises(ConfigError, match=r"^sample\.thoughts is '3'; it takes a whole number$"):
        SampleConfig(thoughts="3")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^model is 3; it takes a ModelConfig$"):
        TrainConfig(model=3)  # type: ignore[arg-type]
    assert RunConfig(folder=tmp_path).folder == str(tmp_path)  # type: ignore[arg-type]
    assert OptimConfig(betas=[0, 0]).betas == (0.0, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: SampleConfig(thoughts=0), "sample.thoughts"),
        (lambda: SampleConfig(temperature=0.0), "sample.temperature"),
        (lambda: SampleConfig(top_p=1.5), "sample.top_p"),
        (lambda: SampleConfig(fork_at=""), "sample.fork_at"),
        (lambda: SampleConfig(thoughts=100_000, answers=10_000), "1,000,000,000 rollouts"),
        (lambda: CreditConfig(dual_clip=1.0), "credit.dual_clip"),
        (lambda: CreditConfig(clip=False, clip_low=0.2), "credit.clip"),
        (lambda: OptimConfig(lr=0.0), "optim.lr"),
        (lambda: TrainConfig(sample=SampleConfig(thoughts=1, answers=1)), "sample.thoughts"),
        (
            lambda: TrainConfig(task=TaskConfig(held_out_size=8), evaluation=EvaluationConfig(prompts=9)),
            "task.held_out_size",
        ),
    ],
)
def test_values_out_of_range_name_their_field(make, field):
    with pytest.raises(ConfigError, match=rf"\b{field}\b"):
        make()


# ---------------------------------------------------------------------------------------------------- YAML


def numbers(kind: Any) -> st.SearchStrategy[Any]:
    if kind is int:
        return st.integers(min_value=1, max_value=10**6)
    return st.floats(min_value=1e-30, max_value=0.875)


def anything() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | tricky_text()
    return st.recursive(leaves, lambda item: st.lists(item) | st.dictionaries(st.text(), item), max_leaves=5)


def tricky_text() -> st.SearchStrategy[str]:
    return st.sampled_from(
        ["null", "1e-5", "007", "yes", "1_000", "~", "1:30", "# no", "{a: 1}", "</think>", ".5e3", "\x85", "a\u2028b"]
    )


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    if is_optional(kind):
        return st.none() | values_of(next(part for part in get_args(kind) if part is not type(None)))
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        first, *rest = get_args(kind)
        return st.lists(values_of(first), max_size=3) if rest == [...] else st.tuples(*map(values_of, [first, *rest]))
    if is_dataclass(kind):
        hints = type_hints(kind)
        return st.builds(kind, **{name: values_of(hint) for name, hint in hints.items()})
    if get_origin(kind) is dict:
        return st.dictionaries(st.text() | tricky_text(), anything(), max_size=3)
    if kind is str:
        return st.text(min_size=1) | tricky_text()
    return st.booleans() if kind is bool else numbers(kind)


@st.composite
def configurations(draw: st.DrawFn) -> TrainConfig:
    """A configuration with a few fields changed to anything their type holds and their range admits."""
    config = TrainConfig()
    for name in draw(st.lists(st.sampled_from(sorted(settings())), max_size=6, unique=True)):
        try:
            config = with_setting(config, name, draw(values_of(settings()[name].kind)))
        except ConfigError:
            continue
    return config


def with_setting(config: Any, name: str, value: Any) -> Any:
    head, _, rest = name.partition(".")
    return replace(config, **{head: with_setting(getattr(config, head), rest, value) if rest else value})


@given(configurations())
def test_yaml_reads_back_to_the_same_settings(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("yaml") / "config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(path) == config


def write(tmp_path, text: str, name: str = "run.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_may_be_empty_commented_out_or_dotted(tmp_path):
    assert load_config(write(tmp_path, "")) == TrainConfig()
    assert load_config(write(tmp_path, "sample:\n#  thoughts: 3\n")) == TrainConfig()
    assert load_config(write(tmp_path, "sample.thoughts: 3\n")).sample.thoughts == 3
    assert load_config(write(tmp_path, "optim: {lr: 1e-5, betas: [0.5, 0]}")).optim.betas == (0.5, 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sample:\n  thougts: 3\n", r"line 2: sample\.thougts is not a setting; did you mean sample\.thoughts\?"),
        ("thoughts: 3\n", r"line 1: thoughts is not a setting; did you mean sample\.thoughts\?"),
        ("model:\n  lora:\n    rnk: 3\n", r"line 3: model\.lora\.rnk is not a setting; did you mean model\.lora\.rank"),
        ("sample:\n  answers: 2\n  thoughts: many\n", r"line 3: sample\.thoughts is 'many'; it takes a whole number"),
        ("sample: 3\n", r"line 1: sample takes a mapping"),
        ("- 3\n", r"line 1: the file takes a mapping"),
        ("sample:\n  thoughts: 3\n  thoughts: 4\n", r"line 3: thoughts is given twice"),
        ("task:\n  args: {a: 1, a: 2}\n", r"line 2: a is given twice"),
        ("task:\n  args: {[a]: 1}\n", r"line 2: a key is a word"),
        ("{a: 1}: 2\n", r"line 1: a key is a word"),
        ("sample: {thoughts: 3\n", "is not YAML"),
    ],
)
def test_a_fault_in_a_file_is_named_with_its_line(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read: No such file"):
        load_config(tmp_path / "nowhere.yaml")


# ---------------------------------------------------------------------------------------------- precedence


def other_value(name: str) -> tuple[Any, Any]:
    """Two values of a setting, different from each other and from its default."""
    kind, default = settings()[name].kind, settings()[name].default
    if is_optional(kind):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if name == "credit.dual_clip":
        return 3.0, 4.0
    if name == "sample.closing_text":
        return "one</think>", "two</think>"
    if get_origin(kind) is Literal:
        choices = [choice for choice in get_args(kind) if choice != default]
        return choices[0], choices[-1]
    if get_origin(kind) is tuple:
        first = get_args(kind)[0]
        if get_origin(first) is Literal:
            return get_args(first)[:1], get_args(first)[1:3]
        if is_dataclass(first):
            return (ForkConfig(3, 7),), (ForkConfig(2, 5, "x"), ForkConfig(2, 4))
        return (("a",), ("b", "c")) if first is str else ((0.5, 0.25), (0.25, 0.5))
    if get_origin(kind) is dict:
        return {"digits": 3}, {"largest": "9"}
    if kind is bool:
        return not default, bool(default)
    if kind is int:
        return (default or 1) + 1, (default or 1) + 2
    return ("one", "two") if kind is str else (0.25, 0.125)


def value_of(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


@pytest.mark.parametrize("name", sorted(settings()))
def test_argument_beats_file_beats_default_for_every_setting(tmp_path, name):
    in_file, in_argument = other_value(name)
    base = with_setting(TrainConfig(), "task.held_out_size", 10**6)  # room for every evaluation.prompts
    if name == "sample.closing_text":
        base = with_setting(base, "sample.unclosed_thought", "close")
    path = write(tmp_path, to_yaml(with_setting(base, name, in_file)))
    assert value_of(TrainConfig(), name) == settings()[name].default
    assert value_of(load_config(path), name) == in_file
    assert value_of(resolve([path], [(name, as_word(in_argument))]), name) == in_argument


def as_word(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return str([asdict(item) for item in value]).replace("None", "null")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {item!r}" for key, item in value.items()) + "}"
    return str(list(value) if isinstance(value, tuple) else value).replace("True", "true").replace("False", "false")


def test_of_several_files_the_later_wins_setting_by_setting(tmp_path):
    first = write(tmp_path, "sample: {thoughts: 5, answers: 3}\ntask: {args: {digits: 1, largest: 9}}\n", "a.yaml")
    second = write(tmp_path, "sample: {thoughts: 6}\ntask: {args: {digits: 3}}\n", "b.yaml")
    config = load_config(first, second)
    assert (config.sample.thoughts, config.sample.answers) == (6, 3)
    assert config.task.args == {"digits": 3}
    assert load_config(second, first).sample.thoughts == 5


def test_one_key_of_a_mapping_can_be_set(tmp_path):
    path = write(tmp_path, "task: {args: {digits: 1, name: '007'}}\n")
    assert resolve([path], [("task.args.digits", "3")]).task.args == {"digits": 3, "name": "007"}
    assert resolve([path], [("task.args", "{}"), ("task.args.lr", "1e-5")]).task.args == {"lr": 1e-5}
    assert TaskConfig().args == {}


@pytest.mark.parametrize("text", ["####", "# no", "write #### first", "#", " #x"])
def test_on_the_command_line_nothing_is_a_comment(text):
    assert resolve([], [("task.args.answer_after", text)]).task.args == {"answer_after": text}
    assert resolve([], [("task.args.x", "[1, '#'] ")]).task.args == {"x": [1, "#"]}


def test_the_home_folder_is_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert RunConfig(folder="~/runs/mine").folder == "/home/me/runs/mine"
    assert EvaluateConfig(folder="~/e", data="~/d").data == "/home/me/d"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("run.folder", "null", None),
        ("run.folder", "123", "123"),
        ("sample.fork_at", "a: b", "a: b"),
        ("credit.baseline", "none", "none"),
        ("credit.baseline", "null", None),
        ("credit.ddof", "1", 1),
        ("optim.max_grad_norm", "null", None),
        ("optim.lr", "3e-6", 3e-6),
        ("model.autocast", "true", True),
        ("model.lora.target_modules", "[q_proj, v_proj]", ("q_proj", "v_proj")),
    ],
)
def test_words_become_values(name, text, value):
    assert value_of(resolve([], [(name, text)]), name) == value


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("sample.thougts", "sample.thoughts"),
        ("thoughts", "sample.thoughts"),
        ("optim.thoughts", "sample.thoughts"),
        ("smaple.thoughts", "sample.thoughts"),
        ("cold-start.steps", "cold_start.steps"),
        ("credit.normalizer", "credit.normaliser"),
        ("seed", "run.seed"),
        ("model.lora.r", "model.lora.rank"),
        ("model.rank", "model.lora.rank"),
        ("task.arg.digits", "task.args"),
    ],
)
def test_nearest_name(name, meant):
    assert nearest(name) == meant


def test_every_field_of_every_section_is_a_setting_with_words_for_its_type():
    names = {
        f"{prefix}.{part.name}"
        for prefix, owner in sections().items()
        for part in fields(owner)
        if not is_dataclass(type_hints(owner)[part.name])
    }
    assert names == set(settings())
    assert all(in_words(setting.kind) for setting in settings().values())
    assert settings()["model.path"].doc.startswith("A Hugging Face folder")


def test_model_defaults_are_the_documented_ones():
    assert ModelConfig() == TrainConfig().model
