"""Presets: the table they stand for, the settings that change them, the pages that explain them."""

import runpy
from pathlib import Path

import pytest

from phloem import presets
from phloem.config import ConfigError, CreditConfig

ROOT = Path(__file__).parents[2]

TABLE = {
    "grpo": ("rollout", "group", "std", "every", "token-group", 0.2, 0.2),
    "grpo-seq": ("rollout", "group", "std", "every", "sequence", 0.2, 0.2),
    "dr-grpo": ("rollout", "group", "none", "every", "constant", 0.2, 0.2),
    "dapo": ("rollout", "group", "std", "every", "token", 0.2, 0.28),
    "rloo": ("rollout", "leave-one-out", "none", "every", "rollout", None, None),
    "lambda-grpo": ("rollout", "group", "std", "once", "token-group", 0.2, 0.2),
    "lambda-grpo-sn": ("rollout", "group", "std", "once", "distinct-group", 0.2, 0.2),
    "grpo-ma": ("segment", "level", "std", "every", "segment", 0.2, 0.2),
    "lambda-grpo-ma": ("segment", "level", "std", "once", "segment", 0.2, 0.2),
}


def test_the_presets_are_the_table():
    found = {
        name: (r.unit, r.baseline, r.scale, r.share, r.normaliser, r.clip_low, r.clip_high)
        for name in presets.names()
        for r in [presets.get(name)]
    }
    assert found == TABLE
    for name in presets.names():
        rule = presets.get(name)
        assert (rule.ddof, rule.eps, rule.beta, rule.kl_share) == (1, 1e-4, 0.0, rule.share)


def test_every_page_is_what_the_code_says():
    pages = runpy.run_path(str(ROOT / "docs" / "write_presets.py"))["pages"]()
    folder = ROOT / "docs" / "presets"
    assert {path.name for path in folder.glob("*.md")} == set(pages)
    for name, text in pages.items():
        assert (folder / name).read_text("utf-8") == text, "run `python docs/write_presets.py`"


def test_settings_replace_single_fields():
    config = CreditConfig(preset="grpo-ma", baseline="siblings", ddof=0, eps=0.0, beta=0.04, clip_high=0.3)
    rule = presets.from_config(config, max_completion_tokens=96)
    assert (rule.unit, rule.baseline, rule.ddof, rule.eps, rule.beta) == ("segment", "siblings", 0, 0.0, 0.04)
    assert (rule.clip_low, rule.clip_high, rule.max_completion_tokens) == (0.2, 0.3, 96)


def test_clipping_can_be_switched_off():
    rule = presets.from_config(CreditConfig(preset="dapo", clip=False), 10)
    assert (rule.clip_low, rule.clip_high) == (None, None)


def test_clipping_cannot_be_switched_on_without_a_bound():
    with pytest.raises(ConfigError, match=r"clip is true and rloo has no bounds: set credit\.clip_low"):
        presets.from_config(CreditConfig(preset="rloo", clip=True), 10)
    assert presets.from_config(CreditConfig(preset="rloo", clip=True, clip_high=0.2), 10).clip_high == 0.2


def test_an_unknown_preset_is_a_config_error_that_names_its_neighbour():
    with pytest.raises(ConfigError, match="did you mean 'grpo-ma'"):
        presets.from_config(CreditConfig(preset="grpo-am"), 10)
