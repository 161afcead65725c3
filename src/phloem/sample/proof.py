"""Proof that a sampler elsewhere holds the weights that were pushed to it.

A push can fail without an error: a kernel that keeps a packed copy of a matrix, a tied head that is not loaded again,
a server that answers for another model. So after each push the logprobs of fixed rows are taken on both sides, and
the change since an earlier push must be the same on both: a sampler that kept its old weights would leave out the
whole of it.

Both sides round. Their distance at the earlier push (`noise`) says how far they are apart with equal weights; the
changes may differ by a few times that, plus a tenth of the trainer's own change. An update too small to stand out of
this proves nothing yet: the comparison then goes on against the same earlier push, and the changes add up until they
do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phloem.sample.twin import StaleWeights

__all__ = ["GAP", "Proof"]

GAP = 0.05
"""Mean distance of the logprobs of a token, in nats, above which the two are not the same policy."""
_MARGIN = 6.0
"""Times the noise by which the changes may differ."""
_FLOOR = 1e-6
_UNMOVED = 1e-3
"""A change of the trainer's, in nats, that cannot leave every logprob of the sampler as it was to the last bit."""

_REMEDY = (
    "What was pushed has not arrived, so the rollouts would come from another policy than the one trained. For "
    "vllm-server: is sample.vllm.url the server of this run, does it see sample.vllm.weights_folder, and was it "
    "started as docs/sampling-vllm.md says? For vllm: this version of vLLM may not reload this model; sample.engine hf "
    "samples with the trainer's own weights"
)


@dataclass
class _Pair:
    """Logprobs of the probe's tokens on both sides after one push, each of shape (n,)."""

    trainer: np.ndarray
    sampler: np.ndarray


class Proof:
    """Watches the pushes of a run.

    Attributes:
        proven: number of pushes at which the changes stood out and agreed; the first push is one if its gap is small.
        gap: mean distance of the two sides' logprobs at the last push, in nats.
        moved: root mean square of the trainer's change since the last proven push, in nats.
    """

    def __init__(self) -> None:
        self.proven, self.gap, self.moved = 0, float("nan"), float("nan")
        self._base: _Pair | None = None
        self._last: _Pair | None = None

    def __call__(self, trainer: np.ndarray, sampler: np.ndarray) -> None:
        """Judges a push.

        Args:
            trainer, sampler: logprobs of the probe's tokens after it, in nats, shape (n,), the same tokens each time.

        Raises:
            StaleWeights: the sampler does not hold the policy's weights.
        """
        now = _Pair(np.asarray(trainer, dtype=np.float64), np.asarray(sampler, dtype=np.float64))
        if now.trainer.shape != now.sampler.shape or not np.isfinite(now.sampler).all():
            raise StaleWeights(f"the sampler gave no logprob for some of the probe's tokens. {_REMEDY}")
        self.gap = float(np.abs(now.trainer - now.sampler).mean())
        if self._last is not None:
            self._check_not_frozen(self._last, now)
        if self._base is not None:
            self._check_moved(self._base, now)
        if self.gap > GAP:
            raise StaleWeights(
                f"after the push the sampler's logprobs are {self.gap:.3f} nats a token away from the policy's (at "
                f"most {GAP}). {_REMEDY}. A narrow dtype on a large model can round that much too: sample.dtype float32"
            )
        if self._base is None:
            self._base = now
            self.proven = 1
        self._last = now

    def _check_not_frozen(self, last: _Pair, now: _Pair) -> None:
        change = _rms(now.trainer - last.trainer)
        if change > _UNMOVED and np.array_equal(now.sampler, last.sampler):
            raise StaleWeights(
                f"the policy's logprobs moved by {change:.2g} nats with the update, and the sampler's not at all. "
                f"{_REMEDY}"
            )

    def _check_moved(self, base: _Pair, now: _Pair) -> None:
        trainer, sampler = now.trainer - base.trainer, now.sampler - base.sampler
        noise = max(_rms(base.trainer - base.sampler), _FLOOR)
        self.moved = _rms(trainer)
        allowed = _MARGIN * noise + 0.1 * self.moved
        if (off := _rms(trainer - sampler)) > allowed:
            raise StaleWeights(
                f"the policy's logprobs moved by {self.moved:.2g} nats and the sampler's by {_rms(sampler):.2g}; they "
                f"differ by {off:.2g}, and rounding explains {allowed:.2g}. {_REMEDY}"
            )
        if self.moved > allowed:
            self.proven += 1
            self._base = now


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))
