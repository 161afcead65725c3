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

__all__ = ["Draw", "uniforms"]

_BLOCK = 256
"""Vocabulary entries summed together: a draw searches the blocks first, then one block."""
_ROWS = 8
"""Rows worked on at a time, so that a vocabulary's worth of them stays in a core's cache."""


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
            FloatingPointError: logits that are not numbers.
        """
        u = torch.from_numpy(np.ascontiguousarray(numbers)).to(logits.device)
        parts = [self._rows(logits[i : i + _ROWS], u[i : i + _ROWS]) for i in range(0, len(logits), _ROWS)]
        tokens = torch.cat([t for t, _ in parts]).cpu().numpy()
        logprobs = torch.cat([p for _, p in parts]).cpu().numpy()
        if not np.isfinite(logprobs).all():
            raise FloatingPointError(
                "the model's logits are not finite: the weights have diverged, or overflow in this dtype"
            )
        return tokens, logprobs

    def _rows(self, logits: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n, size = logits.shape
        width = -(-size // _BLOCK) * _BLOCK
        scaled = torch.full((n, width), -torch.inf, dtype=torch.float32, device=logits.device)
        scaled[:, :size] = logits
        if self.temperature != 1:
            scaled /= self.temperature
        scaled -= scaled.amax(-1, keepdim=True)
        weights = scaled.exp()
        blocks = weights.view(n, -1, _BLOCK)
        log_total = blocks.sum(-1).double().sum(-1).log()
        if self.top_k or self.top_p < 1:
            self._cut(weights)
        tokens = _inverse_cdf(blocks, u)
        return tokens, (scaled.gather(1, tokens[:, None]).squeeze(1).double() - log_total).float()

    def _cut(self, weights: torch.Tensor) -> None:
        """Sets the weights outside top-k and top-p to 0; the most probable token always stays."""
        k = min(self.top_k, weights.shape[-1]) or weights.shape[-1]
        top, index = weights.topk(k, dim=-1)
        if self.top_p < 1:
            share = top.double() / top.double().sum(-1, keepdim=True)
            top[share.cumsum(-1) - share >= self.top_p] = 0
        weights.zero_().scatter_(1, index, top)


def _inverse_cdf(blocks: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Ids (n,) whose interval of the cumulative weights holds u times their sum; never an id of weight 0.

    `blocks` is (n, blocks, entries). The search runs over the blocks' sums and then inside one block, in float64.
    """
    sums = blocks.sum(-1).double()
    block, rest = _search(sums, u * sums.sum(-1))
    entries = blocks[torch.arange(len(block), device=block.device), block].double()
    entry, _ = _search(entries, rest)
    return block * blocks.shape[-1] + entry


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
