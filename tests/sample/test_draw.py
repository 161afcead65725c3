"""One token per row by the inverse of the CDF."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phloem.sample import SampleError
from phloem.sample.draw import Draw, uniforms


def test_streams_depend_on_seed_key_and_branch_alone():
    one = uniforms(3, (1, 2), (0, 1), 8)
    assert np.array_equal(one, uniforms(3, (np.int64(1), 2), (0, 1), 8))
    assert np.array_equal(one[:5], uniforms(3, (1, 2), (0, 1), 5))
    assert one.min() >= 0
    assert one.max() < 1
    others = [(4, (1, 2), (0, 1)), (3, (1, 3), (0, 1)), (3, (1, 2), (0, 2)), (3, (1,), (2, 0, 1)), (3, (1, 2, 0), (1,))]
    for other in others:
        assert not np.intersect1d(one, uniforms(*other, 8)).size


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("size", [5, 256, 700])
def test_a_number_gives_the_token_whose_interval_holds_it(temperature, size):
    logits = torch.randn(11, size, generator=torch.Generator().manual_seed(size)) * 3
    numbers = np.random.default_rng(0).random(11)
    tokens, logprobs = Draw(temperature)(logits, numbers)
    exact = (logits.double() / temperature).log_softmax(-1)
    edges = exact.exp().cumsum(-1).numpy()
    for row, token in enumerate(tokens):
        low = edges[row, token - 1] if token else 0
        assert low - 1e-6 <= numbers[row] <= edges[row, token] + 1e-6
        assert logprobs[row] == pytest.approx(exact[row, token].item(), abs=1e-5)


def test_the_ends_of_the_interval_never_give_an_impossible_token():
    logits = torch.full((4, 300), -torch.inf)
    logits[:, [7, 290]] = 0.0
    tokens, logprobs = Draw()(logits, np.array([0.0, np.nextafter(0.5, 0), 0.5, np.nextafter(1, 0)]))
    assert list(tokens) == [7, 7, 290, 290]
    assert np.allclose(logprobs, np.log(0.5))


def test_top_k_and_top_p_cut_the_draw_and_not_the_logprob():
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.25, 0.05]]).repeat(1000, 1)
    logits = probabilities.log()
    numbers = (np.arange(1000) + 0.5) / 1000

    def shares(draw: Draw) -> list[float]:
        tokens, logprobs = draw(logits, numbers)
        assert np.allclose(logprobs, logits[0].numpy()[tokens], atol=1e-6)
        return (np.bincount(tokens, minlength=5) / 1000).tolist()

    assert shares(Draw()) == pytest.approx([0.1, 0.4, 0.2, 0.25, 0.05], abs=0.002)
    assert shares(Draw(top_k=2)) == pytest.approx([0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], abs=0.002)
    assert shares(Draw(top_p=0.7)) == pytest.approx([0, 0.4 / 0.85, 0.2 / 0.85, 0.25 / 0.85, 0], abs=0.002)
    assert shares(Draw(top_k=3, top_p=0.5)) == pytest.approx([0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], abs=0.002)
    assert shares(Draw(top_p=1e-9)) == [0, 1, 0, 0, 0]
    assert shares(Draw(top_k=99)) == shares(Draw())


def test_bfloat16_logits_are_computed_on_in_float32():
    logits = torch.randn(3, 40).bfloat16()
    _, logprobs = Draw(0.7)(logits, np.array([0.1, 0.5, 0.9]))
    tokens, _ = Draw(0.7)(logits.float(), np.array([0.1, 0.5, 0.9]))
    exact = (logits.double() / 0.7).log_softmax(-1)[range(3), tokens]
    assert np.allclose(logprobs, exact, atol=1e-6)


def test_diverged_weights_are_an_error():
    with pytest.raises(SampleError, match="diverged"):
        Draw()(torch.tensor([[0.0, torch.nan]]), np.array([0.5]))
