"""A vLLM server (`vllm serve`), through its OpenAI-compatible completions with ids in and out."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import torch
from safetensors.torch import save_file

from phloem.config import SampleConfig
from phloem.sample.requests import Continue, Reply, Request
from phloem.sample.sampler import SampleError
from phloem.sample.vllm_worker import EXTENSION

__all__ = ["ServerEngine"]

_FILE_BYTES = 2 * 2**30
"""Weights kept in memory before they are written."""


class ServerEngine:
    """An engine behind `sample.vllm.url`.

    Args:
        config: temperature, top_p, top_k, max_rows (requests under way at a time) and the section `vllm`.
        eos_ids: ids that end a completion.

    Attributes:
        context: longest row in tokens.

    Raises:
        SampleError: no server answers there.
    """

    def __init__(self, config: SampleConfig, eos_ids: Sequence[int]) -> None:
        self._config, self._eos_ids = config, list(eos_ids)
        model = self._get("/v1/models")["data"][0]
        self._model, self.context = model["id"], int(model["max_model_len"])

    def push(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Writes weights where the server sees them, has them loaded, and drops every cached prefix.

        Raises:
            SampleError: the server does not take weights, or kept its cache.
        """
        parent = self._config.vllm.weights_folder
        if parent is not None and not Path(parent).is_dir():
            raise SampleError(
                f"sample.vllm.weights_folder {parent} is no folder: make it, where the server sees it too"
            )
        with tempfile.TemporaryDirectory(prefix="phloem-weights-", dir=parent) as folder:
            _write(tensors, Path(folder))
            self._control("/collective_rpc", {"method": "receive_weights", "args": [folder]})
        if not self._control("/reset_prefix_cache", {}).get("success"):
            raise SampleError(
                "the vLLM server kept its prefix cache, which holds keys and values of the old weights: something else "
                "is using it; give this run a server of its own"
            )

    def run(self, requests: Iterable[Request], then: Continue) -> None:
        """Serves requests and those that follow from them; see `Engine.run`."""
        with ThreadPoolExecutor(self._config.max_rows) as pool:
            running: dict[Future[Reply], Request] = {pool.submit(self._complete, r): r for r in requests}
            try:
                while running:
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        for request in then(running.pop(future), future.result()):
                            running[pool.submit(self._complete, request)] = request
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprobs of each row's tokens after the first, at temperature 1, by a prefill."""
        found: list[list[float]] = []
        for row in rows:
            body = {"prompt": list(row), "max_tokens": 1, "prompt_logprobs": 0, "ignore_eos": True}
            steps = self._post("/v1/completions", {"model": self._model, **body})["choices"][0].get("prompt_logprobs")
            if steps is None:
                raise SampleError("the vLLM server returned no prompt_logprobs")
            found.append([step[str(t)]["logprob"] for step, t in zip(steps[1:], row[1:], strict=True)])
        return found

    def _complete(self, request: Request) -> Reply:
        body = {
            "model": self._model,
            "prompt": list(request.ids),
            "return_token_ids": True,
            "logprobs": 0,  # of the sampled token alone
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stop": [] if request.until is None else [request.until],
            "stop_token_ids": self._eos_ids,
            "ignore_eos": True,  # the model's own end ids: those of the policy are in stop_token_ids
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            # Everything that shapes the distribution: a server takes what is left out from the model's folder.
            "temperature": self._config.temperature,
            "top_p": self._config.top_p,
            "top_k": self._config.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        choice = self._post("/v1/completions", body)["choices"][0]
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        return Reply(
            choice.get("token_ids") or [],
            [float("nan") if p is None else p for p in logprobs],
            choice["finish_reason"] == "stop",
        )

    def _control(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A call that an ordinary server does not offer."""
        try:
            return self._post(path, body)
        except SampleError as error:
            raise SampleError(
                f"{error}. Start the server with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls {EXTENSION}, in an "
                "environment with Phloem, on a machine that sees sample.vllm.weights_folder"
            ) from error

    def _get(self, path: str) -> dict[str, Any]:
        return self._call(path, None)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._call(path, json.dumps(body).encode())

    def _call(self, path: str, body: bytes | None) -> dict[str, Any]:
        url = self._config.vllm.url.rstrip("/") + path
        with _reaching(url):
            request = HttpRequest(url, body, {"Content-Type": "application/json"})
            with urlopen(request, timeout=self._config.vllm.timeout) as answer:
                return json.loads(answer.read() or b"{}")


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Turns what can go wrong on the way into a SampleError with a remedy."""
    try:
        yield
    except HTTPError as error:
        raise SampleError(f"{url} answered {error.code}: {error.read().decode(errors='replace')[:500]}") from error
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise SampleError(
            f"no answer from {url} ({error}): start `vllm serve` (docs/sampling-vllm.md), or set sample.vllm.url"
        ) from error


def _write(tensors: Iterable[tuple[str, torch.Tensor]], folder: Path) -> None:
    """Safetensors files of about `_FILE_BYTES` each."""
    part: dict[str, torch.Tensor] = {}
    size = files = 0
    for name, tensor in tensors:
        part[name] = tensor.detach().cpu().contiguous()
        size += tensor.nbytes
        if size >= _FILE_BYTES:
            save_file(part, folder / f"{files:05d}.safetensors")
            part, size, files = {}, 0, files + 1
    if part:
        save_file(part, folder / f"{files:05d}.safetensors")
