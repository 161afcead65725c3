"""A stand-in for vLLM that samples with a second copy of the model, row by row, and gets its weights by `push`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from phloem.config import SampleConfig
from phloem.sample.checkpoint import base_model
from phloem.sample.requests import Continue, Reply, Request


class StandInEngine:
    """Takes the place of `LocalEngine`: same arguments, random weights until the first push.

    Like vLLM it looks for closing text in what it has decoded, and here only at every other token, so that it stops
    late.
    """

    context = 64

    def __init__(self, policy: Any, tokenizer: Any, config: SampleConfig, eos_ids: Sequence[int]) -> None:
        self.config, self.eos_ids, self.tokenizer = config, set(eos_ids), tokenizer
        self.model = copy.deepcopy(base_model(policy)).float().eval()
        if hasattr(policy, "get_base_model"):
            self.model = type(self.model)(self.model.config).eval()
        with torch.no_grad():
            for p in self.model.parameters():
                p.uniform_(-1e-3, 1e-3)
        self.requests: list[Request] = []
        self.pushes = 0

    def push(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        unknown = self.model.load_state_dict(dict(tensors), strict=False).unexpected_keys
        assert not unknown, unknown
        self.pushes += 1

    def run(self, requests: Iterable[Request], then: Continue) -> None:
        waiting = list(requests)
        while waiting:
            request = waiting.pop()
            self.requests.append(request)
            waiting.extend(then(request, self.sample(request)))

    @torch.no_grad()
    def sample(self, request: Request) -> Reply:
        generator = torch.Generator().manual_seed(request.seed)
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < request.max_tokens:
            logits = self.model(torch.tensor([[*request.ids, *tokens]])).logits[0, -1]
            row = (logits / self.config.temperature).log_softmax(-1)
            token = int(torch.multinomial(row.exp(), 1, generator=generator))
            tokens.append(token)
            logprobs.append(float(row[token]))
            late = len(tokens) % 2 == 0 and request.until is not None and request.until in self.tokenizer.decode(tokens)
            if token in self.eos_ids or late:
                return Reply(tokens, logprobs, True)
        return Reply(tokens, logprobs, False)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        found = []
        for row in rows:
            logits = self.model(torch.tensor([list(row)])).logits[0, :-1].log_softmax(-1)
            found.append(logits[range(len(row) - 1), list(row)[1:]].tolist())
        return found
