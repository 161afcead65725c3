"""What decides the figures of an evaluation, as one flat table from name to value.

Two evaluations may be merged (one goes on where another stopped) only if their tables are equal, and compared only if
they are equal where it matters; where they are not, the names say why.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from phloem.config import EvaluateConfig
from phloem.evaluate.benchmarks import Problems
from phloem.kinds import ConfigError

__all__ = [
    "IDENTITY",
    "changes",
    "digest_of",
    "grader_version",
    "identity",
    "packages",
    "read_identity",
    "weights_digest",
]

IDENTITY = "identity.json"
"""The table's file in the folder of an evaluation."""

PACKAGES = ("phloem", "torch", "transformers", "tokenizers", "peft", "numpy", "math-verify", "sympy", "vllm")
SAMPLE = ("n", "max_tokens", "temperature", "top_p", "top_k", "engine")
PROMPT = ("system_prompt", "chat_template", "chat_args")
"""Settings of `sample` and `prompt` that decide figures; the template is in the table by benchmark."""
GRADERS = {
    "math": ("verdict.py", "math.py", "maths", "runner.py", "worker.py"),
    "code": ("verdict.py", "code.py", "code_names.py", "code_tests.py", "sandbox"),
}
"""Sources of each grader, inside `phloem.rewards`."""


def packages() -> dict[str, str]:
    """Versions of Python and of the packages that sampling and grading rest on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def grader_version(grader: str) -> str:
    """The package's version and a digest of the grader's own source: any change of its rules changes it."""
    import phloem.rewards

    root = Path(phloem.rewards.__file__).parent
    digest = hashlib.blake2b(digest_size=4)
    for name in GRADERS[grader]:
        files = [root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py"))
        for file in files:
            digest.update(file.read_bytes())
    return f"phloem {version('phloem')} {grader} {digest.hexdigest()}"


def weights_digest(model: Any, tokenizer: Any) -> str:
    """A digest of a model's weights (names, types, values), its tokenizer and its chat template."""
    import torch

    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode())
    digest.update(str(getattr(tokenizer, "chat_template", None)).encode())
    return digest.hexdigest()


def identity(config: EvaluateConfig, problems: Sequence[Problems], fingerprint: str) -> dict[str, Any]:
    """The table: settings, model, problems, wordings, graders, versions.

    `sample.max_rows` and `threads` are left out: they move results within rounding only, and a machine that runs out
    of memory must be able to go on with less of them.
    """
    table: dict[str, Any] = {
        "model.fingerprint": fingerprint,
        "model.dtype": config.model.dtype,
        **{f"sample.{name}": getattr(config.sample, name) for name in SAMPLE},
        "seed": config.seed,
        **{f"prompt.{name}": getattr(config.prompt, name) for name in PROMPT},
        "benchmarks": list(config.benchmarks),
    }
    for part in problems:
        name = part.benchmark.name
        table[f"{name}.problems"] = f"{len(part.examples)} of {part.available}, digest {part.digest}"
        table[f"{name}.template"] = config.prompt.template or part.benchmark.template
        table[f"grader.{part.benchmark.grader}"] = grader_version(part.benchmark.grader)
    return table | {f"packages.{name}": found for name, found in packages().items()}


def read_identity(folder: Path) -> dict[str, Any]:
    """The table of the evaluation in a folder.

    Raises ConfigError: there is none, or its file holds something else.
    """
    said = f"{folder} is not the folder of an evaluation"
    try:
        table = json.loads((folder / IDENTITY).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{said}: {IDENTITY} cannot be read ({error}); name another folder") from None
    if not isinstance(table, dict) or not {"model.fingerprint", "benchmarks", "sample.n"} <= table.keys():
        raise ConfigError(f"{said}: {IDENTITY} does not say what was evaluated; name another folder")
    return table


def digest_of(table: Mapping[str, Any]) -> str:
    """The fingerprint of a table, 16 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(table, sort_keys=True).encode(), digest_size=8).hexdigest()


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Names whose values differ, each with both values."""
    for name in dict.fromkeys((*before, *after)):
        if name not in before or name not in after or before[name] != after[name]:
            yield f"{name} ({_shown(before, name)}, then {_shown(after, name)})"


def _shown(table: Mapping[str, Any], name: str) -> str:
    text = repr(table[name]) if name in table else "unset"
    return text if len(text) <= 80 else f"{text[:77]}..."
