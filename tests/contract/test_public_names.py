"""Names that other people build on: where they are found, and what they take. A change here is a breaking change."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

import phloem

FUNCTIONS = {
    "phloem.load_config": ["*paths"],
    "phloem.to_yaml": ["config"],
    "phloem.presets.get": ["name", "**changes"],
    "phloem.presets.names": [],
    "phloem.tree.PrefixTree.from_group": ["group"],
    "phloem.tree.PrefixTree.from_rollouts": ["prompt", "completions", "rewards=None"],
    "phloem.tree.Group.from_rollouts": ["prompt", "completions", "rewards=None"],
    "phloem.credit.assign": ["group", "rule", "totals=None", "tree=None"],
    "phloem.credit.to_rows": ["credit", "group"],
    "phloem.loss.surrogate": [
        *("logprobs", "old_logprobs", "c_pos", "c_neg"),
        *("clip_low=0.2", "clip_high=0.2", "dual_clip=None"),
    ],
    "phloem.forward.logprobs": ["model", "pack", "temperature=1.0", "chunk=64"],
    "phloem.sample.Sampler.sample": ["self", "prompts", "plan", "keys"],
    "phloem.train.train": ["config", "task=None", "resume=False"],
    "phloem.evaluate.evaluate": ["config", "say=None"],
    "phloem.evaluate.compare": ["before", "after"],
    "phloem.evaluate.pass_at_k": ["samples", "right", "k"],
    "phloem.doctor.examine": ["config", "task=None"],
    "phloem.tasks.get": ["config", "seed=0"],
}
"""Dotted name to parameters."""

ATTRIBUTES = {
    "phloem.tree.Segment": {"tokens", "parent", "sampled", "logprobs", "finish", "reward"},
    "phloem.tree.Group": {"prompt", "segments"},
    "phloem.credit.Credit": {"tree", "c_pos_T", "c_neg_T", "c_kl_T"},
    "phloem.tasks.Example": {"id", "prompt", "answer", "row", "demonstrations"},
    "phloem.rewards.Verdict": {"status", "reward", "extracted", "parsed", "gold", "detail"},
    "phloem.evaluate.Evaluation": {"folder", "report", "held_out"},
    "phloem.evaluate.Comparison": {"before", "after", "differences", "notes"},
    "phloem.doctor.Report": {"title", "findings", "prompt"},
    "phloem.doctor.Finding": {"level", "topic", "sentence", "remedy", "rows"},
    "phloem.train.RunResult": {"folder", "steps", "before", "after", "gain", "constant_baseline"},
}
"""Dataclass to fields that it has at least."""


def found(name: str):
    module, _, rest = name.partition(".")[2].partition(".")
    owner = phloem if not rest else import_module(f"phloem.{module}")
    for part in (rest or module).split("."):
        owner = getattr(owner, part)
    return owner


def shown(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    return f"{stars}{parameter.name}{default}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_what_they_took(name: str):
    signature = inspect.signature(found(name))
    assert [shown(parameter) for parameter in signature.parameters.values()] == FUNCTIONS[name]


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_data_keep_their_fields(name: str):
    assert set(found(name).__dataclass_fields__) >= ATTRIBUTES[name]


def test_a_task_has_the_members_of_its_protocol():
    members = {"name", "train", "held_out", "score", "check", "constant_baseline"}
    assert members <= set(dir(found("phloem.tasks.Task")))


PARTS = ("tree", "credit", "loss", "models", "forward", "sample", "rewards", "tasks", "evaluate", "train", "doctor")


@pytest.mark.parametrize("part", PARTS)
def test_parts_export_names_that_exist_and_document_them(part: str):
    module = import_module(f"phloem.{part}")
    assert module.__all__ == sorted(module.__all__, key=lambda name: (not name.isupper(), name))
    for name in module.__all__:
        exported = getattr(module, name)
        if inspect.isclass(exported) or inspect.isfunction(exported):
            assert exported.__doc__, f"phloem.{part}.{name} has no docstring"


def test_the_root_lists_what_it_has():
    assert all(hasattr(phloem, name) for name in [*phloem.__all__, *dir(phloem)])
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        phloem.nothing  # noqa: B018
