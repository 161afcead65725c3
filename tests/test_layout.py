"""Imports go down the layout only; what is light stays light; what is declared is used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from phloem import EvaluateConfig, TrainConfig
from phloem.settings import settings

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "phloem"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = {name.rpartition(".")[2] for root in (TrainConfig, EvaluateConfig) for name in settings(root)}

# A part imports only from parts above its own line, and freely inside itself.
LAYOUT = (
    "kinds",
    "config",
    "settings",
    "presets",
    "files",
    "means",
    "tree",
    "credit",
    "loss",
    "models",
    "forward",
    "sample",
    "rewards",
    "tasks",
    "evaluate",
    "analysis",
    "train",
    "studies",
    "doctor",
    "cli",
    "__main__",
)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in the file; `from a import b` yields both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} is a relative import; name the module in full"
            yield str(node.module)
            if node.module == "phloem":
                yield from (f"phloem.{alias.name}" for alias in node.names)


def test_every_part_has_a_place_in_the_layout():
    parts = {part_of(path) for path in MODULES} - {"__init__"}
    assert parts <= set(LAYOUT)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_the_layout(path: Path):
    part = part_of(path)
    if part == "__init__":
        return
    above = set(LAYOUT[: LAYOUT.index(part)])
    for module in imported_modules(path):
        head, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        if head == "phloem" and target in LAYOUT:
            assert target == part or target in above, f"{part} may not import {module}: it stands below"


def third_party(path: Path) -> set[str]:
    heads = {module.partition(".")[0] for module in imported_modules(path)}
    return heads - set(sys.stdlib_module_names) - {"phloem"}


@pytest.mark.parametrize("part", ["tree", "credit"])
def test_tree_and_credit_are_numpy_only(part: str):
    used = set[str]().union(*(third_party(path) for path in (PACKAGE / part).rglob("*.py")))
    assert used == {"numpy", "jaxtyping"}


HEAVY = ("torch", "transformers", "datasets", "accelerate", "peft", "numpy", "matplotlib", "rich")
LIGHT = (
    "import phloem, phloem.config, phloem.presets, phloem.settings, phloem.cli",
    "from phloem.cli import main; main(['--help'])",
    "from phloem.cli import main; main(['train', '--help'])",
    "from phloem.cli import main; main(['train', '--print_config', '--sample.thoughts', '8'])",
    "from phloem.cli import main; main(['doctor', '--help'])",
    "from phloem.cli import main; main(['evaluate', '--print_config', '--sample.n', '8', '--sample.temperature', '1'])",
    "from phloem.cli import main; main(['presets'])",
    "from phloem.cli import main; main(['train', '--sample.thougts', '8'])",
)
HEAVIEST = ("torch", "transformers", "datasets", "accelerate", "peft", "matplotlib", "reasoning_gym", "sympy")


def loaded_by(code: str, heavy: tuple[str, ...] = HEAVY) -> set[str]:
    """The heavy libraries that a fresh interpreter has loaded after running `code`."""
    code += f"\nimport sys; print('LOADED', *(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("code", LIGHT)
def test_nothing_heavy_is_loaded_before_a_command_needs_it(code: str):
    assert loaded_by(code) == set()


def test_the_list_of_tasks_loads_no_torch():
    assert loaded_by("from phloem.cli import main; main(['tasks'])", HEAVIEST) == set()


def test_comparing_evaluations_loads_no_torch():
    assert (
        loaded_by("import phloem.evaluate; from phloem.cli import main; main(['evaluate', '--help'])", HEAVIEST)
        == set()
    )


def test_the_doctor_loads_no_torch_before_it_looks_at_a_tokenizer():
    assert loaded_by("import phloem.doctor", HEAVIEST) == set()


@pytest.mark.parametrize("part", ["tree", "credit"])
def test_tree_and_credit_load_no_torch(part: str):
    assert loaded_by(f"import phloem; phloem.{part}") == {"numpy"}


# Used without an import of ours: transformers renders chat templates with jinja2 and reads GGUF files with gguf.
INDIRECT = {"jinja2", "gguf"}
# Imported where it is asked for, and not part of the environment of these tests.
OPTIONAL = {"vllm"}


def test_dependencies_are_what_the_code_imports():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["demo"]]
    declared = {canonical(re.split(r"[^\w.-]", line)[0]) for line in lines}
    distributions = packages_distributions()
    imported = set[str]().union(*(third_party(path) for path in MODULES))
    used = {canonical(distributions[head][0]) for head in imported - OPTIONAL}
    assert used - declared == set(), "imported and not declared"
    assert declared - used <= INDIRECT, "declared and not used"


def test_constraints_pin_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["demo"], *extras["dev"], *extras["docs"]]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonical(line.partition("==")[0]) for line in pins if "==" in line}
    assert {canonical(re.split(r"[^\w.-]", line)[0]) for line in lines} <= pinned


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_setting_is_read_somewhere():
    """A field that nothing looks at would be a flag that does nothing."""
    read: set[str] = set()
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        read |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in NAMES}
    assert NAMES - read == set()
