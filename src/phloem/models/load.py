"""From `ModelConfig` to a policy and its tokenizer, checked."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phloem.config import LoraConfig, ModelConfig
from phloem.kinds import a_few
from phloem.models.errors import ModelError
from phloem.models.hub import endpoint, reachable, without_waiting
from phloem.models.smollm2 import ALIAS, smollm2_folder
from phloem.models.tokenizer import check_ids, check_tokenizer, eos_ids

__all__ = [
    "Declared",
    "ModelError",
    "check_trainable",
    "checkpoint_activations",
    "load_model",
    "load_skeleton",
    "load_tokenizer",
    "resolve",
]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_ADAPTER = "adapter_config.json"


def load_model(config: ModelConfig, device: Any = None, trainable: bool = True) -> tuple[Any, Any]:
    """Loads the policy and its tokenizer.

    `config.path` is a Hugging Face folder (a PEFT adapter's too: it is loaded trainable on its base model), a GGUF
    file, a hub id, or `smollm2-135m-instruct`. GGUF weights are converted once and kept in the cache folder.

    Args:
        config: path, dtype, LoRA, gradient checkpointing.
        device: where to put the weights; None: the CPU.
        trainable: refuse a model without trainable parameters; False for evaluation.

    Returns:
        A `transformers` causal language model (a `peft` model where adapters are used), in eval mode, and its
        tokenizer.

    Raises:
        ModelError: an unknown path, a model that is no causal language model, a tokenizer that does not fit it,
            nothing to train.
    """
    folder, base = _folders(config)
    with _of_adapters(folder, base):
        tokenizer, model = _load_tokenizer(folder, base), _load_weights(base, config.dtype)
    check_tokenizer(model, tokenizer)
    if _is_adapter(folder):
        from peft import PeftModel

        with _reading(folder), _quiet():
            model = PeftModel.from_pretrained(model, folder, is_trainable=trainable)
    elif config.lora.rank:
        model = _with_lora(model, config.lora)
    if config.gradient_checkpointing:
        checkpoint_activations(model)
    if trainable:
        check_trainable(model)
    model.eval()
    return (model if device is None else model.to(device)), tokenizer


def load_skeleton(config: ModelConfig) -> Any:
    """The policy that `load_model` would load with its shapes and adapters but no weights (on torch's meta device).

    Raises:
        ModelError: as `load_model`, for what can be seen without weights.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder, base = _folders(config)
    with _of_adapters(folder, base), _reading(base), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base), dtype=getattr(torch, config.dtype))
    if _is_adapter(folder):
        import peft

        settings = peft.PeftConfig.from_pretrained(folder)
        settings.inference_mode = False
        with _quiet():
            model = peft.get_peft_model(model, settings)
    elif config.lora.rank:
        model = _with_lora(model, config.lora)
    check_trainable(model)
    return model


@dataclass(frozen=True)
class Declared:
    """What a model says of itself without its weights; it can stand for the model in `eos_ids`."""

    config: Any
    generation_config: Any = None

    @property
    def context(self) -> int | None:
        """The longest row in tokens; None: the model names no limit."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    @property
    def vocabulary(self) -> int:
        """Ids that have an embedding."""
        return int(self.config.get_text_config().vocab_size)


def load_tokenizer(config: ModelConfig) -> tuple[Any, Declared]:
    """The tokenizer that `load_model` would load, and the model's configuration; no weights.

    A GGUF file and `smollm2-135m-instruct` are converted first if they never were.

    Raises:
        ModelError: an unknown path, no tokenizer, a vocabulary that does not fit the model.
    """
    from transformers import AutoConfig, GenerationConfig

    folder, base = _folders(config)
    tokenizer = _load_tokenizer(folder, base)
    with _reading(base):
        model_config = AutoConfig.from_pretrained(base)
    try:
        generation = GenerationConfig.from_pretrained(base)
    except OSError:  # a model need not have one
        generation = None
    declared = Declared(model_config, generation)
    check_ids(tokenizer, eos_ids(declared, tokenizer), declared.vocabulary)
    return tokenizer, declared


def resolve(path: str) -> str:
    """A local folder or a hub id for what `model.path` names.

    Raises:
        ModelError: neither an existing path nor the shape of a hub id.
    """
    if path == ALIAS:
        return str(smollm2_folder())
    local = Path(path).expanduser()
    if local.is_dir():
        return str(local)
    if local.is_file():
        if local.suffix == ".gguf":
            from phloem.models.gguf import convert_gguf

            return str(convert_gguf(local))
        raise ModelError(f"model.path {path} is a file: give the model's folder, or a .gguf file")
    if _HUB_ID.fullmatch(path) and not path.endswith(".gguf"):
        return path
    raise ModelError(
        f"model.path {path} does not exist: give a Hugging Face folder, a .gguf file, a hub id such as "
        f"org/name, or {ALIAS}"
    )


def check_trainable(model: Any) -> None:
    """Raises ModelError: no parameter asks for a gradient, so that training would change nothing."""
    if not any(p.requires_grad for p in model.parameters()):
        raise ModelError(
            "the model has no trainable parameters, so training would change nothing: load adapters with "
            "is_trainable=True, or set model.lora.rank to train new ones"
        )


def _folders(config: ModelConfig) -> tuple[str, str]:
    """Where the model (or its adapter) is, and where its base model is: the same unless it is an adapter."""
    folder = resolve(config.path)
    if not _is_adapter(folder):
        return folder, folder
    if config.lora.rank:
        raise ModelError(f"{config.path} is an adapter and model.lora.rank is {config.lora.rank}: set the rank to 0")
    return folder, resolve(_adapter_base(folder))


def _load_weights(folder: str, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    with _reading(folder):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), output_loading_info=True
        )
    model, found = loaded
    if missing := sorted(found["missing_keys"]):  # transformers fills these with random numbers and goes on
        raise ModelError(
            f"model.path: the weights in {folder} lack {a_few(missing, 3)} of a {type(model).__name__}: fetch "
            "the checkpoint again, or give the folder of a causal language model"
        )
    return model


def _load_tokenizer(folder: str, base: str) -> Any:
    from transformers import AutoTokenizer

    source = folder if _has_tokenizer(folder) else base
    with _reading(source):
        return AutoTokenizer.from_pretrained(source)


@contextmanager
def _reading(folder: str) -> Iterator[None]:
    """Turns what transformers raises about a folder or hub id into a ModelError with a remedy."""
    from safetensors import SafetensorError

    kind = "folder" if os.path.isdir(folder) else "hub id"
    try:
        with without_waiting() if kind == "hub id" else nullcontext():
            yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        remedy = "give the folder of a causal language model with its config.json, weights and tokenizer"
        if kind == "hub id" and not reachable():
            raise ModelError(
                f"model.path: {folder} is no folder here and not in the hub's cache, and {endpoint()} cannot be "
                f"reached: check the network (and HF_HUB_OFFLINE), or give a local folder or {ALIAS}"
            ) from error
        if kind == "hub id":
            remedy = f"check the spelling, or use a local folder or {ALIAS}"
        raise ModelError(f"model.path: the {kind} {folder} could not be loaded: {remedy}. ({error})") from error


@contextmanager
def _of_adapters(folder: str, base: str) -> Iterator[None]:
    """Says whose base model it is that could not be loaded, where the settings name adapters."""
    try:
        yield
    except ModelError as error:
        if base == folder:
            raise
        raise ModelError(
            f"{base}, the base model that {folder}/{_ADAPTER} names, could not be loaded: put it back there, or name "
            f"its place as base_model_name_or_path in a copy of the adapters. ({error})"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a warning of transformers 5.24 to peft, which asks a model by an old name what it computes again."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def checkpoint_activations(model: Any) -> None:
    """Has the model compute activations again in the backward pass, under the name that its transformers knows."""
    settings = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):  # the name from transformers 5.24 on
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=settings)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)


def _is_adapter(folder: str) -> bool:
    return (Path(folder) / _ADAPTER).is_file()


def _has_tokenizer(folder: str) -> bool:
    return not _is_adapter(folder) or (Path(folder) / "tokenizer_config.json").is_file()


def _adapter_base(folder: str) -> str:
    from peft import PeftConfig

    base = PeftConfig.from_pretrained(folder).base_model_name_or_path
    if not base:
        raise ModelError(f"{folder}/{_ADAPTER} names no base model: set base_model_name_or_path in it")
    return base


def _with_lora(model: Any, lora: LoraConfig) -> Any:
    import peft

    targets: Any = list(lora.target_modules)
    if targets == ["all-linear"]:
        targets = "all-linear"
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]  # peft multiplies by it; a float is fine
        lora_dropout=lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    try:
        with _quiet():
            return peft.get_peft_model(model, settings)
    except ValueError as error:
        raise ModelError(f"model.lora.target_modules {targets} does not fit this model: {error}") from error
