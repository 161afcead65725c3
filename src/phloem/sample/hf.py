"""The tree sampler on a transformers model, in this process.

Each prompt is prefilled once, each segment is computed once however many continue it, and rows of all prompts and
stages are decoded together (`phloem.sample.run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from phloem.config import SampleConfig
from phloem.models import eos_ids as declared_eos_ids
from phloem.sample.draw import Draw
from phloem.sample.grow import StageTable, Tables
from phloem.sample.run import Run, SampleStats
from phloem.sample.sampler import ForkPlan, SampleError, Stage, check_request
from phloem.sample.twin import Twin
from phloem.tree import Group

__all__ = ["HFSampler"]

_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Between logprobs with and without a cache, in standard deviations (plus .01) of them over the vocabulary."""


class HFSampler:
    """Samples groups from a transformers (or peft) causal language model.

    The model itself is left alone: its train/eval mode, config and attention are those of before. With
    `config.dtype` "model" its parameters are shared, so an update of them in place is seen at once; another dtype
    keeps a copy, and sampling from a copy that is older than the policy is an error.

    Args:
        model: the policy, not wrapped for several processes.
        tokenizer: its tokenizer; only the bytes of single tokens are read from it, to find closing tags.
        config: temperature, top_p, top_k, max_rows, dtype. The shape of the groups comes with each call's plan.
        eos_ids: ids that end a completion; None: all that the model and tokenizer declare.
        seed: of the random numbers, with the keys given to `sample`.

    Attributes:
        stats: what the last call of `sample` computed.

    Raises:
        SampleError: a model whose attention or cache cannot be served, by name; found out by sampling a few tokens
            and comparing them with plain forwards.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: SampleConfig,
        eos_ids: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.seed = seed
        self.eos_ids = declared_eos_ids(model, tokenizer) if eos_ids is None else tuple(eos_ids)
        self.draw = Draw(config.temperature, config.top_p, config.top_k)
        self.twin = Twin(model, None if config.dtype == "model" else getattr(torch, config.dtype))
        self.stats = SampleStats()
        text_config = model.config.get_text_config()
        self.vocabulary = int(text_config.vocab_size)
        self._tables = Tables(tokenizer, self.vocabulary, self.eos_ids)
        self.context: int | None = getattr(text_config, "max_position_embeddings", None)
        self._check_forward(type(model).__name__)

    @property
    def version(self) -> int:
        """Number of calls of `sync`."""
        return self.twin.version

    def sync(self) -> None:
        """Takes over the policy's weights and raises `version`; call it after every update."""
        self.twin.sync()

    def sample(self, prompts: Sequence[np.ndarray], plan: ForkPlan, keys: Sequence[tuple[int, ...]]) -> list[Group]:
        """One group per prompt; see `Sampler.sample`. `stats` then says what was computed.

        In float32 the rollouts are the same whatever `max_rows`, the order of the prompts and the process, up to
        draws that fall within rounding (about 1e-6 of the probability mass) of the border between two tokens.

        Raises:
            SampleError: a prompt that does not fit the model's context, keys that do not match the prompts.
            StaleWeights: the policy was updated and `sync` was not called.
        """
        prompts = [np.asarray(p, dtype=np.int64) for p in prompts]
        check_request(prompts, plan, keys, self.vocabulary, self.context)
        self.twin.check_fresh()
        if not prompts:
            return []
        return self._run(prompts, plan, keys, self.config.max_rows)

    def _run(
        self, prompts: Sequence[np.ndarray], plan: ForkPlan, keys: Sequence[tuple[int, ...]], max_rows: int
    ) -> list[Group]:
        streams = [(self.seed, key) for key in keys]
        with torch.inference_mode():
            run = Run(self.twin, self.draw, self.table(plan), prompts, streams, max_rows)
            groups = run.groups()
        self.stats = run.stats
        return groups

    def _check_forward(self, name: str) -> None:
        """Samples a few tokens and compares their logprobs with plain forwards of each row.

        A model that places tokens or masks them in a way of its own would be sampled wrongly without an error.

        Raises:
            SampleError: the forward fails on the sampler's cache, or gives other logprobs.
        """
        prompts = [np.arange(4, 9) % self.vocabulary, np.arange(3) % self.vocabulary]
        try:
            groups = self._run(prompts, ForkPlan((Stage(1, 2), Stage(2, 2))), [(0,), (1,)], max_rows=4)
        except SampleError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise SampleError(f"{name} cannot run on the sampler's key-value cache: {error}") from error
        gaps = [self._gap(group, rollout) for group in groups for rollout in range(group.group_size)]
        if (gap := float(np.mean(gaps))) > _TOLERANCE[next(self.twin.model.parameters()).dtype]:
            raise SampleError(
                f"{name} gives other logprobs on the sampler's key-value cache than without one (by {gap:.3g} of "
                "their standard deviation over the vocabulary): it cannot be sampled token by token"
            )

    @torch.inference_mode()
    def _gap(self, group: Group, rollout: int) -> float:
        ids = torch.from_numpy(np.concatenate([group.prompt, group.completion(rollout)]))
        first = len(group.prompt)
        logits = self.twin.plain_logits(ids.to(next(self.twin.model.parameters()).device))[first - 1 : -1]
        plain = (logits.double() / self.config.temperature).log_softmax(-1).cpu()
        segments = [group.segments[s].logprobs for s in group.path(group.leaves[rollout])]
        sampled = np.concatenate([s for s in segments if s is not None])
        difference = np.abs(plain[range(len(plain)), ids[first:]].numpy() - sampled)
        return float((difference / (plain.std(-1).numpy() + 0.01)).mean())

    def table(self, plan: ForkPlan) -> StageTable:
        """The stop conditions of a plan, made once."""
        return self._tables(plan)
