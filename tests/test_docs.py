"""The pages are true: their code runs, their links lead somewhere, their tables are the code's.

A fence of `python` or `bash` says what becomes of it: `run` (here) or `show` (too long for a test, or not for a
machine). The `python` fences of a page run one after the other in one interpreter, each `bash` fence in a shell of its
own, in an empty folder that sees `recipes/` and `examples/`.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from phloem.presets import PRESETS
from phloem.rewards import REWARDS
from phloem.settings import load_config, settings
from phloem.tasks import GENERATED
from phloem.tasks.data import DataOptions

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "notes").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def fences(page: Path, language: str, fate: str) -> list[str]:
    return [code for lang, mark, code in FENCE.findall(page.read_text("utf-8")) if (lang, mark) == (language, fate)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("recipes", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def run(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "MPLBACKEND": "Agg"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_code_fence_says_whether_it_runs(page: Path):
    for language, fate, code in FENCE.findall(page.read_text("utf-8")):
        if language in {"python", "bash"}:
            assert fate in {"run", "show"}, f"{page.name}: mark this fence `run` or `show`:\n{code}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_site_gets_fences_that_markdown_reads(page: Path):
    plain = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["on_page_markdown"](page.read_text("utf-8"))
    opened = [line for line in plain.splitlines() if line.startswith("```")]
    assert all(re.fullmatch(r"```\w*", line) for line in opened)


@pytest.mark.smollm2
@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "python", "run")], ids=name_of)
def test_python_of_a_page_runs(page: Path, folder: Path):
    run([sys.executable, "-c", "\n".join(fences(page, "python", "run"))], folder)


@pytest.mark.smollm2
@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "bash", "run")], ids=name_of)
def test_commands_of_a_page_run(page: Path, folder: Path):
    for commands in fences(page, "bash", "run"):
        run(["bash", "-euo", "pipefail", "-c", commands], folder)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path):
    for target, _ in LINK.findall(page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.smollm2
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=name_of)
def test_examples_run(example: Path, folder: Path):
    assert run([sys.executable, str(example)], folder)


# ------------------------------------------------------------------------------------- tables and recipes


def test_the_settings_page_is_the_settings():
    page = runpy.run_path(str(ROOT / "docs" / "write_config.py"))["page"]()
    assert (ROOT / "docs" / "config.md").read_text("utf-8") == page, "run `python docs/write_config.py`"
    assert all(f"`{name}`" in page for name in settings())


def test_the_page_on_speed_is_what_the_benchmarks_found():
    page = runpy.run_path(str(ROOT / "docs" / "write_speed.py"))["page"]()
    assert (ROOT / "docs" / "speed.md").read_text("utf-8") == page, "run `python docs/write_speed.py`"


RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_recipes_are_short_and_valid(recipe: Path):
    assert len(recipe.read_text("utf-8").splitlines()) <= 30
    load_config(recipe)
    load_config(ROOT / "recipes" / "demo.yaml", recipe)


def test_the_recipes_page_names_every_recipe_and_no_other():
    page = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    assert [recipe.stem for recipe in RECIPES if f"`{recipe.stem}`" not in page] == []
    named = set(re.findall(r"recipes/([\w-]+)\.yaml", page))
    assert named <= {recipe.stem for recipe in RECIPES}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_a_page_and_a_recipe_of_its_shape(preset: str):
    config = load_config(ROOT / "recipes" / f"{preset}.yaml")
    shape = (4, 4) if PRESETS[preset].rule.unit == "segment" else (16, 1)
    assert (config.credit.preset, config.sample.thoughts, config.sample.answers) == (preset, *shape)
    page = (ROOT / "docs" / "presets" / f"{preset}.md").read_text("utf-8")
    assert preset in page.splitlines()[0]


def test_the_tasks_page_names_every_task_reward_and_argument_of_data():
    page = (ROOT / "docs" / "tasks.md").read_text("utf-8")
    arguments = [field.name for field in fields(DataOptions)]
    assert [name for name in (*GENERATED, *REWARDS, *arguments) if f"`{name}`" not in page] == []


def test_the_file_map_names_every_part():
    readme = (ROOT / "README.md").read_text("utf-8")
    for path in (ROOT / "src" / "phloem").iterdir():
        if (path.suffix == ".py" and not path.name.startswith("__")) or (path / "__init__.py").exists():
            line = f"  {path.name}" if path.suffix == ".py" else f"  {path.name}/"
            assert f"\n{line} " in readme, f"README's file map lacks {path.name}"


def test_the_speed_of_sampling_is_that_of_the_benchmark():
    page = runpy.run_path(str(ROOT / "docs" / "write_sampling.py"))["page"]()
    assert (ROOT / "docs" / "sampling-speed.md").read_text("utf-8") == page


def test_the_page_of_results_is_that_of_the_runs():
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    for row in json.loads((ROOT / "benchmarks" / "results" / "runs.json").read_text("utf-8")):
        mean, low, high = (f"{row['gain'][key]:+.3f}".replace("0.", ".", 1) for key in ("mean", "low", "high"))
        assert f"{mean} [{low}, {high}]" in page, row["command"]
        for time in ("before", "after"):
            places = 3 if row[time]["prompts"] > 9 else 2
            assert f"{row[time]['reward']:.{places}f}".lstrip("0") in page, row["command"]
