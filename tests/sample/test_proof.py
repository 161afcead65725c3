"""The proof that pushed weights arrived: it passes what did, and stops what did not."""

from __future__ import annotations

import numpy as np
import pytest

from phloem.sample import StaleWeights
from phloem.sample.proof import GAP, Proof

N = 200


def walk(step: float, noise: float, arrives: float, pushes: int = 30, seed: int = 0) -> Proof:
    """Pushes of a policy that moves by `step` nats each time; a share `arrives` of each move reaches the sampler."""
    rng = np.random.default_rng(seed)
    trainer = rng.uniform(-5, 0, N)
    sampler, proof = trainer.copy(), Proof()
    for _ in range(pushes):
        proof(trainer, sampler + noise * rng.standard_normal(N))
        move = step * rng.standard_normal(N)
        trainer, sampler = trainer + move, sampler + arrives * move
    return proof


@pytest.mark.parametrize("noise", [0, 1e-6, 1e-3, 1e-2])
@pytest.mark.parametrize("step", [0, 1e-6, 1e-4, 1e-2, 0.3])
def test_weights_that_arrive_pass(step, noise):
    proof = walk(step, noise, arrives=1.0)
    assert proof.gap <= GAP
    assert proof.proven >= 1
    if step > 10 * noise and step > 1e-5:
        assert proof.proven == 30, "each push is seen to arrive"


@pytest.mark.parametrize("arrives", [0.0, 0.5])
@pytest.mark.parametrize(("step", "noise"), [(1e-4, 1e-6), (2e-2, 1e-3), (0.3, 1e-2)])
def test_weights_that_do_not_arrive_stop_the_run_at_the_first_push(step, noise, arrives):
    with pytest.raises(StaleWeights, match=r"policy's logprobs moved by .* and the sampler's .*sample\.vllm"):
        walk(step, noise, arrives, pushes=2)


def test_updates_below_the_noise_add_up_until_they_are_seen():
    assert walk(step=2e-3, noise=1e-2, arrives=0.0, pushes=3).proven == 1
    with pytest.raises(StaleWeights, match="rounding explains"):
        walk(step=2e-3, noise=5e-3, arrives=0.0, pushes=2000)


def test_a_sampler_that_stands_still_to_the_last_bit_is_found_in_any_noise():
    rng = np.random.default_rng(0)
    trainer = rng.uniform(-5, 0, N)
    sampler = trainer + 0.03 * rng.standard_normal(N)
    proof = Proof()
    proof(trainer, sampler)
    with pytest.raises(StaleWeights, match="the sampler's not at all"):
        proof(trainer + 2e-3, sampler)


def test_another_policy_is_found_at_the_first_push():
    trainer = np.linspace(-5, 0, N)
    with pytest.raises(StaleWeights, match=r"0\.100 nats a token away"):
        Proof()(trainer, trainer - 0.1)
    with pytest.raises(StaleWeights, match="no logprob for some"):
        Proof()(trainer, np.full(N, np.nan))
