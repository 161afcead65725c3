"""A trained policy as one plain model: adapters merged into the weights they were trained on."""

from __future__ import annotations

from pathlib import Path

from phloem.config import ModelConfig
from phloem.files import replaced_folder
from phloem.kinds import ConfigError
from phloem.models import load_model
from phloem.train.policy import write_model
from phloem.train.resume import settings_of_run

__all__ = ["export"]


def export(source: Path, target: Path) -> str:
    """Writes the policy of a run folder (its `model`), or of a model folder within one, to a new folder.

    What is written loads with transformers and vLLM without peft. Returns a line that says what was written.

    Raises:
        ConfigError: nothing to export, or `target` exists.
        PhloemError: the model cannot be loaded, or the target cannot be written.
    """
    if target.exists():
        raise ConfigError(f"{target} exists already; name a new folder")
    folder = source / "model" if (source / "config.yaml").exists() else source
    if not (folder / "config.json").exists() and not (folder / "adapter_config.json").exists():
        raise ConfigError(f"{folder} holds no model: name a run folder whose run has saved one, or a model's folder")
    run = next((path for path in (folder, *folder.parents) if (path / "config.yaml").exists()), None)
    dtype = "float32" if run is None else settings_of_run(run).model.dtype
    model, tokenizer = load_model(ModelConfig(path=str(folder), dtype=dtype), trainable=False)
    merged = hasattr(model, "peft_config")
    if merged:
        model = model.merge_and_unload(safe_merge=True)
    with replaced_folder(target, "folder") as aside:
        write_model(model, tokenizer, aside)
    return f"{folder}{', adapters merged,' if merged else ''} is in {target}"
