"""Drawing one token per row.

Each branch has its own stream of uniform numbers, from a counter-based generator keyed by (seed, prompt's key,
branch): the i-th token of a branch takes the i-th number. A token is the one whose interval of the cumulative
distribution holds the number (inverse of the CDF), so the draw is a function of the row's logits and that number.

The logprob reported is that of the sampled token under the model's whole distribution at the sampling temperature,
log_softmax(logits / T), also when top-p or top-k cut the distribution the token was drawn from. That is what the
trainer computes for the same token, so the two can be compared token by token; the cut itself is a property of the
rollouts (they come from a narrower policy than the one trained) and not of the logprob.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from phloem.sample.sampler import SampleError

__all__ = ["Draw", "uniforms"]

_BLOCK = 256
"""Vocabulary entries summed together: a draw searches the blocks first, then one block."""
_ENTRIES = 800_000
"""Logits worked on at a time, so that they stay in a core's cache."""


def uniforms(seed: int, key: tuple[int, ...], branch: tuple[int, ...], n: int) -> np.ndarray:
    """The first n numbers of a branch's stream, in [0, 1), float64."""
    name = repr((int(seed), tuple(map(int, key)), tuple(map(int, branch))))
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little"))).random(n)


@dataclass(frozen=True)
class Draw:
    """Temperature, top-p (nucleus) and top-k; 1.0 and 0 switch the latter two off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __call__(self, logits: torch.Tensor, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws a token for each row.

        Args:
            logits: (n, V), of any floating dtype; computed on in float32.
            numbers: (n,) uniform in [0, 1).

        Returns:
            Ids, int64 (n,), and their logprobs in nats at the temperature, float32 (n,).

        Raises:
            SampleError: logits that are not numbers.
        """
        u = torch.from_numpy(np.ascontiguousarray(numbers)).to(logits.device)
        step = max(1, _ENTRIES // logits.shape[1])
        parts = [self._rows(logits[i : i + step], u[i : i + step]) for i in range(0, len(logits), step)]
        tokens = torch.cat([t for t, _ in parts]).cpu().numpy()
        logprobs = torch.cat([p for _, p in parts]).cpu().numpy()
        if not np.isfinite(logprobs).all():
            raise SampleError(
                "the model's logits are not finite: the weights have diverged (lower optim.lr or cold_start.lr), or "
                "overflow in this dtype (set model.dtype and sample.dtype to float32)"
            )
        return tokens, logprobs

    def _rows(self, logits: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = logits.float()
        if self.temperature != 1:
            scaled = scaled / self.temperature
        if rest := scaled.shape[1] % _BLOCK:
            scaled = F.pad(scaled, (0, _BLOCK - rest), value=-torch.inf)
        probabilities = scaled.softmax(-1)
        cut = self.top_k or self.top_p < 1
        tokens = _inverse_cdf(self._cut(probabilities) if cut else probabilities, u)
        return tokens, probabilities.gather(1, tokens[:, None]).squeeze(1).log()

    def _cut(self, probabilities: torch.Tensor) -> torch.Tensor:
        """The probabilities with those outside top-k and top-p at 0; the most probable token always stays."""
        size = probabilities.shape[-1]
        top, index = probabilities.topk(min(self.top_k or size, size), dim=-1)
        if self.top_p < 1:
            share = top.double() / top.double().sum(-1, keepdim=True)
            top = top.masked_fill(share.cumsum(-1) - share >= self.top_p, 0)
        return torch.zeros_like(probabilities).scatter_(1, index, top)


def _inverse_cdf(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Ids (n,) whose interval of the cumulative weights (n, V) holds u times their sum; never an id of weight 0.

    The search runs over the sums of blocks of entries and then inside one block, in float64.
    """
    blocks = weights.view(len(weights), -1, _BLOCK)
    sums = blocks.sum(-1).double()
    block, rest = _search(sums, u * sums.sum(-1))
    entries = blocks[torch.arange(len(block), device=block.device), block].double()
    entry, _ = _search(entries, rest)
    return block * _BLOCK + entry


def _search(weights: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The entry at which the running sum first exceeds the target, and how far into it the target lies.

    Rounding can leave a target at the very end of the sum, or past it: then the last entry of positive weight is
    taken.
    """
    sums = weights.cumsum(-1)
    index = torch.searchsorted(sums, target[:, None], right=True).squeeze(1)
    last = (torch.arange(weights.shape[-1], device=weights.device) * (weights > 0)).amax(-1)
    chosen = torch.minimum(index, last)[:, None]
    before = sums.gather(1, chosen) - weights.gather(1, chosen)
    return chosen.squeeze(1), (target - before.squeeze(1)).clamp(min=0)
