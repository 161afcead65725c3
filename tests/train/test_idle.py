"""Settings that do nothing beside the others are said to."""

from __future__ import annotations

import pytest

from phloem import (
    ColdStartConfig,
    CreditConfig,
    EvaluationConfig,
    LoraConfig,
    ModelConfig,
    RunConfig,
    SampleConfig,
    TrainConfig,
    presets,
)
from phloem.train.idle import idle_beside_others


def said(**sections) -> tuple[str, ...]:
    config = TrainConfig(**sections)
    return idle_beside_others(config, presets.from_config(config.credit, config.sample.max_completion_tokens))


def test_nothing_is_said_of_defaults():
    assert said() == ()
    assert said(sample=SampleConfig(answers=1), credit=CreditConfig(preset="dr-grpo")) == ()


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"model": ModelConfig(lora=LoraConfig(alpha=32, dropout=0.1))},
            "model.lora.alpha, model.lora.dropout set, and idle: model.lora.rank is 0, so there are no adapters",
        ),
        (
            {"sample": SampleConfig(answers=1, fork_at="END")},
            "sample.fork_at set, and idle: sample.answers is 1, so nothing forks",
        ),
        (
            {"credit": CreditConfig(preset="rloo", eps=0.1, ddof=0)},
            "credit.ddof, credit.eps set, and idle: the scale of rloo is none",
        ),
        (
            {"credit": CreditConfig(kl_share="once")},
            "credit.kl_share set, and idle: credit.beta is 0, so there is no KL term",
        ),
        ({"cold_start": ColdStartConfig(lr=1e-3)}, "cold_start.lr set, and idle: cold_start.steps is 0"),
        (
            {"evaluation": EvaluationConfig(prompts=0, samples=2)},
            "evaluation.samples set, and idle: evaluation.prompts is 0",
        ),
        (
            {"evaluation": EvaluationConfig(prompts_between=2)},
            "evaluation.prompts_between set, and idle: evaluation.every is 0",
        ),
        ({"run": RunConfig(project="mine")}, "run.project set, and idle: run.trackers is empty"),
    ],
)
def test_an_idle_setting_is_named_with_the_reason(sections, sentence):
    assert said(**sections) == (sentence,)


def test_what_is_used_is_not_idle():
    assert said(model=ModelConfig(lora=LoraConfig(rank=4, alpha=32))) == ()
    assert said(credit=CreditConfig(kl_share="once", entropy=0.1)) == ()
