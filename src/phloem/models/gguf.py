"""A GGUF file as a Hugging Face folder: converted once, kept in the cache folder.

The weights are stored dequantised (float32): a GGUF's 4-bit blocks cannot be trained. Reading the GGUF takes about
eight times as long as reading the folder, and three times the memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from phloem.models.errors import ModelError

__all__ = ["cache_folder", "convert_gguf", "sha256_of"]

_FORMAT = 1
"""Counted up when the conversion changes, so that folders written by an older one are not used."""

_MARKER = "phloem.json"
_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""GGUF names of the byte-level pre-tokenizers that take digits one by one, which the converted tokenizer loses."""


def cache_folder() -> Path:
    """`$PHLOEM_CACHE`, or the platform's cache folder for the user."""
    if given := os.environ.get("PHLOEM_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "phloem"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert_gguf(path: Path, name: str | None = None) -> Path:
    """The Hugging Face folder of a GGUF file, converted if it is not yet in the cache.

    The folder is written aside and renamed, its marker last, under a lock: a killed conversion leaves nothing that
    would be used, and of two processes one converts and the other waits.

    Raises:
        ModelError: an architecture transformers cannot read, or the `gguf` package is missing.
    """
    from filelock import FileLock

    digest = sha256_of(path)
    target = cache_folder() / "models" / f"{name or path.stem}-{digest[:12]}-v{_FORMAT}"
    if (target / _MARKER).is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if (target / _MARKER).is_file():
            return target
        aside = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent))
        try:
            _write(path, aside)
            marker = {"source": path.name, "sha256": digest, "format": _FORMAT}
            (aside / _MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
            aside.chmod(0o755)
            shutil.rmtree(target, ignore_errors=True)
            aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return target


def _write(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelError(f"{path.name} is a GGUF file: install the `gguf` package to read it") from error

    try:
        pre = GGUFReader(path).get_field("tokenizer.ggml.pre")
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise ModelError(f"{path} is not a whole GGUF file ({error}): fetch it again") from error
    print(f"converting {path.name} once, into {folder.parent} (about half a minute for a small model)", flush=True)
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where)
        quantised = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ModelError(f"transformers cannot read {path.name}: {error}. Use a Hugging Face folder instead") from error
    if pre is not None and pre.contents() in _DIGITS_APART:
        _split_digits(tokenizer)
    _unquantised(quantised).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _unquantised(model: Any) -> Any:
    """The same weights in a model whose config does not say "quantized", which transformers refuses to save."""
    settings = model.config.to_dict()
    settings.pop("quantization_config", None)
    plain = type(model)(type(model.config)(**settings))
    plain.load_state_dict(model.state_dict())
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


def _split_digits(tokenizer: Any) -> None:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
