"""vLLM inside this process (`vllm.LLM`)."""

from __future__ import annotations

import copy
import os
import random
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phloem.config import SampleConfig
from phloem.sample.checkpoint import base_model
from phloem.sample.requests import Continue, Reply, Request
from phloem.sample.sampler import SampleError
from phloem.sample.vllm_worker import EXTENSION

__all__ = ["LocalEngine"]

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in this process: weights are handed over, not sent
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


_latest: weakref.finalize[..., Any] | None = None
"""Shuts the process's engine down."""


class LocalEngine:
    """An engine that starts with random weights and gets all of them by `push`.

    vLLM keeps its process groups for the whole process: a new engine closes the one before it.

    Args:
        policy: the model to serve; its config names the architecture.
        tokenizer: its tokenizer; vLLM decodes with it to find closing text.
        config: temperature, top_p, top_k, max_rows, dtype and the section `vllm`.
        eos_ids: ids that end a completion; no others do.

    Attributes:
        context: longest row in tokens.

    Raises:
        SampleError: vLLM cannot serve the model.
    """

    def __init__(self, policy: Any, tokenizer: Any, config: SampleConfig, eos_ids: Sequence[int]) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] != "0":
            raise SampleError("VLLM_ENABLE_V1_MULTIPROCESSING is set: sample.engine vllm needs it to be 0 or unset")
        global _latest
        if _latest is not None:
            _latest()
        # An extra, which is not installed where types are checked.
        from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

        self._config, self._eos_ids = config, list(eos_ids)
        self._params, self._final = SamplingParams, RequestOutputKind.FINAL_ONLY
        device = next(policy.parameters()).device.type
        with tempfile.TemporaryDirectory(prefix="phloem-vllm-") as folder, _own_state():
            _write_folder(policy, tokenizer, Path(folder))
            try:
                self._llm: Any = LLM(
                    model=folder,
                    load_format="dummy",
                    generation_config="vllm",
                    dtype=_dtype(policy, config),  # pyright: ignore[reportArgumentType]
                    max_model_len=config.vllm.max_model_len or -1,
                    max_num_seqs=config.max_rows,
                    kv_cache_memory_bytes=int(config.vllm.cache_gib * 2**30),
                    gpu_memory_utilization=0.01,  # not reserved: the size of the cache is given
                    enable_prefix_caching=True,
                    enforce_eager=device == "cpu",  # compiling takes minutes there
                    enable_chunked_prefill=device != "cpu",  # a seed's generator cannot be rewound there
                    logprobs_mode="processed_logprobs" if config.whole_distribution else "raw_logprobs",
                    worker_extension_cls=EXTENSION,
                    disable_log_stats=True,
                )
            except (ValueError, RuntimeError, AssertionError) as error:
                raise SampleError(f"vLLM cannot serve {type(base_model(policy)).__name__}: {error}") from error
        self._core = self._llm.llm_engine
        self.context = int(self._llm.model_config.max_model_len)
        self._open = _latest = weakref.finalize(self, _shut_down, self._core)
        self._calls = 0

    def push(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Takes over weights under their checkpoint names and drops every cached prefix.

        Raises:
            SampleError: the cache could not be dropped.
        """
        with self._own_state():
            self._core.collective_rpc("receive_weights", args=(tensors,))
            if not self._core.reset_prefix_cache():
                raise SampleError("vLLM kept its prefix cache, which holds keys and values of the old weights")

    def run(self, requests: Iterable[Request], then: Continue) -> None:
        """Serves requests and those that follow from them; see `Engine.run`."""
        waiting: dict[str, Request] = {}
        self._calls += 1

        def add(new: Iterable[Request]) -> None:
            for request in new:
                name = f"{self._calls}-{request.group}-{'.'.join(map(str, request.branch))}"
                waiting[name] = request
                self._core.add_request(name, {"prompt_token_ids": list(request.ids)}, self._sampling(request))

        with self._own_state():
            try:
                add(requests)
                while waiting:
                    for output in self._core.step():
                        if output.finished:
                            add(then(waiting.pop(output.request_id), _reply(output.outputs[0])))
            finally:
                if waiting:
                    self._core.abort_request(list(waiting))

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprobs of each row's tokens after the first, at temperature 1, by a prefill."""
        params = self._params(max_tokens=1, prompt_logprobs=0, detokenize=False, ignore_eos=True)
        with self._own_state():
            outputs = self._llm.generate([{"prompt_token_ids": list(r)} for r in rows], params, use_tqdm=False)
        return [
            [step[token].logprob for step, token in zip(output.prompt_logprobs[1:], row[1:], strict=True)]
            for output, row in zip(outputs, rows, strict=True)
        ]

    def _own_state(self) -> AbstractContextManager[None]:
        if not self._open.alive:
            raise SampleError("another vLLM engine was started in this process since: make the sampler anew")
        return _own_state()

    def _sampling(self, request: Request) -> Any:
        return self._params(
            temperature=self._config.temperature,
            top_p=self._config.top_p,
            top_k=self._config.top_k,
            seed=request.seed,
            max_tokens=request.max_tokens,
            stop=request.until,
            stop_token_ids=self._eos_ids,
            ignore_eos=True,  # the model's own end ids: those of the policy are in stop_token_ids
            logprobs=0,  # of the sampled token alone
            detokenize=request.until is not None,
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            output_kind=self._final,
        )


def _reply(output: Any) -> Reply:
    tokens = list(output.token_ids)
    steps = output.logprobs or []
    logprobs = [step[token].logprob for step, token in zip(steps, tokens, strict=False) if token in step]
    return Reply(tokens, logprobs, output.finish_reason == "stop")


def _dtype(policy: Any, config: SampleConfig) -> str:
    if config.dtype != "model":
        return config.dtype
    return str(next(policy.parameters()).dtype).removeprefix("torch.")


def _write_folder(policy: Any, tokenizer: Any, folder: Path) -> None:
    """What vLLM reads of a model before it has weights."""
    model = base_model(policy)
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _own_state() -> Iterator[None]:
    """Keeps vLLM's seeding, draws and thread settings away from the trainer in this process."""
    python, set_num_threads = random.getstate(), torch.set_num_threads
    legacy = np.random.get_state()  # noqa: NPY002  # the one that vLLM seeds
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
            torch.set_num_threads = set_num_threads


def _shut_down(core: Any) -> None:
    core.engine_core.shutdown()
