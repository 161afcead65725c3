"""The tree sampler on vLLM, in this process or on a server.

Two stages are two kinds of request: K for the thoughts of a prompt, then M for the answers of each closed thought,
which find the prompt and the thought in vLLM's prefix cache. Weights are pushed by `sync`, which then proves that
they arrived (`phloem.sample.proof`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from phloem.config import SampleConfig
from phloem.models import eos_ids as declared_eos_ids
from phloem.sample.checkpoint import base_model, checkpoint_tensors
from phloem.sample.grow import Tables
from phloem.sample.proof import GAP, Proof
from phloem.sample.requests import grow
from phloem.sample.sampler import ForkPlan, SampleError, check_request
from phloem.sample.twin import Twin, fingerprint, require_unchanged
from phloem.sample.vllm_engine import LocalEngine
from phloem.sample.vllm_server import ServerEngine
from phloem.tree import Group

__all__ = ["VLLMSampler"]

_PROBE_ROWS, _PROBE_TOKENS = 8, 32
_PROBE_KEY = -1
"""Of the probe's random numbers; no prompt of a run has it."""


class VLLMSampler:
    """Samples groups from vLLM with a policy's weights; a `Sampler`.

    The rollouts depend on the seed, the prompt's key and the branch, and on rounding: vLLM's logits change in their
    last bits with what else is in the batch, so a draw within rounding of the border between two tokens can differ.

    Args:
        model: the policy, a transformers or peft model, not wrapped for several processes.
        tokenizer: its tokenizer.
        config: `engine` is vllm or vllm-server; the shape of the groups comes with each call's plan.
        eos_ids: ids that end a completion; None: all that the model and tokenizer declare.
        seed: of the random numbers, with the keys given to `sample`.

    Attributes:
        version: number of calls of `sync`.
        proof: what the pushes have shown so far.

    Raises:
        SampleError: vLLM cannot serve the model, no server answers, or it reports other logprobs than asked for.
        StaleWeights: the first push did not arrive.
    """

    def __init__(
        self, model: Any, tokenizer: Any, config: SampleConfig, eos_ids: Sequence[int] | None = None, seed: int = 0
    ) -> None:
        self.config, self.seed, self.version = config, seed, 0
        self.eos_ids = declared_eos_ids(model, tokenizer) if eos_ids is None else tuple(eos_ids)
        self.vocabulary = int(base_model(model).config.get_text_config().vocab_size)
        self.proof = Proof()
        self._policy, self._tokenizer, self._twin = model, tokenizer, Twin(model, decodes=False)
        self._tables = Tables(tokenizer, self.vocabulary, self.eos_ids)
        self.engine = (
            LocalEngine(model, tokenizer, config, self.eos_ids)
            if config.engine == "vllm"
            else ServerEngine(config, self.eos_ids)
        )
        self._push()
        probe = self._probe()
        self._rows = [np.concatenate([g.prompt, g.completion(r)]) for g in probe for r in range(g.group_size)]
        self._prove()
        self._check_sampled(probe)

    def sync(self) -> None:
        """Pushes the policy's weights, drops the cached prefixes, proves the arrival and raises `version`.

        Raises:
            StaleWeights: the weights did not arrive.
        """
        self._push()
        self._prove()
        self.version += 1

    def sample(self, prompts: Sequence[np.ndarray], plan: ForkPlan, keys: Sequence[tuple[int, ...]]) -> list[Group]:
        """One group per prompt; see `Sampler.sample`.

        Raises:
            SampleError: a prompt that does not fit the context, keys that do not match, a reply that is no segment.
            StaleWeights: the policy was updated and `sync` was not called.
        """
        prompts = [np.asarray(p, dtype=np.int64) for p in prompts]
        check_request(prompts, plan, keys, self.vocabulary, self.engine.context)
        require_unchanged(self._pushed, self._policy.parameters())
        return grow(self.engine, self._tables(plan), prompts, self.seed, keys)

    def _push(self) -> None:
        self._twin.sync()
        self.engine.push(checkpoint_tensors(self._policy))
        self._pushed = fingerprint(self._policy.parameters())

    def _prove(self) -> None:
        trainer = np.concatenate([self._trainer_logprobs(row, 1.0) for row in self._rows])
        self.proof(trainer, np.concatenate(self.engine.logprobs([row.tolist() for row in self._rows])))

    def _probe(self) -> list[Group]:
        """A few rows of the policy's own."""
        start = self._tokenizer.bos_token_id
        prompt = np.array([start if start is not None and start < self.vocabulary else 0])
        plan = ForkPlan.plain(_PROBE_ROWS, min(_PROBE_TOKENS, self.engine.context - 1))
        return grow(self.engine, self._tables(plan), [prompt], self.seed, [(_PROBE_KEY,)])

    def _check_sampled(self, groups: Sequence[Group]) -> None:
        """The logprobs of sampled tokens must be the trainer's at the sampling temperature.

        With top-p or top-k they are those of the whole distribution at temperature 1: training asks for that
        temperature then (`TrainConfig`), and an evaluation does not look at them.
        """
        temperature = self.config.temperature if self.config.whole_distribution else 1.0
        gaps = []
        for row, segment in zip(self._rows, (s for g in groups for s in g.segments), strict=True):
            assert segment.logprobs is not None
            gaps.append(np.abs(self._trainer_logprobs(row, temperature) - segment.logprobs))
        if (gap := float(np.concatenate(gaps).mean())) > GAP:
            mode = "processed_logprobs" if self.config.whole_distribution else "raw_logprobs"
            raise SampleError(
                f"vLLM's logprobs of sampled tokens are {gap:.3f} nats away from the policy's at temperature "
                f"{temperature}, while those of given tokens agree: start the server with --logprobs-mode "
                f"{mode}, without logits processors of its own"
            )

    @torch.inference_mode()
    def _trainer_logprobs(self, row: np.ndarray, temperature: float) -> np.ndarray:
        """Of the row's tokens after the first, shape (len(row) - 1,)."""
        ids = torch.from_numpy(row).to(next(self._policy.parameters()).device)
        logits = self._twin.plain_logits(ids)[:-1].float() / temperature
        return logits.log_softmax(-1).gather(1, ids[1:, None]).squeeze(1).cpu().numpy()
