import numpy as np
import pytest
import torch

from phloem.loss import LossSums, k3, loss_sums, surrogate

float64 = torch.float64


def rows_surrogate(ratio, advantages, weights, low, high):
    """One token covered by several branches, the textbook way."""
    bounded = ratio.clamp(1 - low, 1 + high)
    return -sum(w * torch.minimum(ratio * a, bounded * a) for a, w in zip(advantages, weights, strict=True))


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.0, 0.5)])
def test_the_clip_folds_in_value_and_gradient(low, high):
    rng = np.random.default_rng(0)
    advantages, weights = rng.normal(size=7), rng.random(7)
    c_pos = torch.full((400,), float((weights * advantages.clip(min=0)).sum()), dtype=float64)
    c_neg = torch.full((400,), float((weights * advantages.clip(max=0)).sum()), dtype=float64)
    new = torch.linspace(-1.0, 1.0, 400, dtype=float64, requires_grad=True)
    old = torch.zeros(400, dtype=float64)
    folded = surrogate(new, old, c_pos, c_neg, low, high)
    textbook = rows_surrogate(new.exp(), advantages, weights, low, high)
    torch.testing.assert_close(folded, textbook, rtol=1e-13, atol=1e-13)
    ours, theirs = torch.autograd.grad(folded.sum(), new)[0], torch.autograd.grad(textbook.sum(), new)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


def test_clipped_tokens_have_no_gradient():
    new = torch.tensor([0.5, -0.5, 0.5, -0.5], dtype=float64, requires_grad=True)
    c_pos = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=float64)
    c_neg = torch.tensor([0.0, 0.0, -1.0, -1.0], dtype=float64)
    surrogate(new, torch.zeros(4, dtype=float64), c_pos, c_neg, 0.2, 0.2).sum().backward()
    assert [g == 0 for g in new.grad.tolist()] == [True, False, False, True]


def test_without_clipping_the_gradient_is_policy_gradient():
    new = torch.tensor([0.3, -2.0], dtype=float64, requires_grad=True)
    old = torch.tensor([0.0, 0.0], dtype=float64)
    c = torch.tensor([0.5, -0.25], dtype=float64)
    surrogate(new, old, c.clamp(min=0), c.clamp(max=0), None, None).sum().backward()
    torch.testing.assert_close(new.grad, -c * new.detach().exp())


def test_dual_clip_bounds_the_loss_of_a_bad_token():
    new = torch.tensor([np.log(10.0)], dtype=float64, requires_grad=True)
    args = (torch.zeros(1, dtype=float64), torch.zeros(1, dtype=float64), torch.tensor([-1.0], dtype=float64))
    assert surrogate(new, *args, dual_clip=None).item() == pytest.approx(10.0)
    bounded = surrogate(new, *args, dual_clip=3.0)
    assert bounded.item() == pytest.approx(3.0)
    bounded.sum().backward()
    assert new.grad.item() == 0


def test_old_logprobs_carry_no_gradient():
    new = torch.tensor([-1.0], dtype=float64, requires_grad=True)
    surrogate(new, new, torch.ones(1, dtype=float64), torch.zeros(1, dtype=float64)).sum().backward()
    assert new.grad.item() == -1.0


def test_k3_by_hand_and_its_gradient():
    new = torch.tensor([-1.0, -1.0], dtype=float64, requires_grad=True)
    ref = torch.tensor([-1.0, -1.0 + np.log(2.0)], dtype=float64)
    value = k3(new, ref)
    torch.testing.assert_close(value, torch.tensor([0.0, 2 - np.log(2.0) - 1], dtype=float64))
    value.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([0.0, 1.0 - 2.0], dtype=float64))


def test_k3_is_unbiased_on_tokens_of_the_policy():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
    estimate = k3(torch.tensor(np.log(p)), torch.tensor(np.log(q)))
    assert float((torch.tensor(p) * estimate).sum()) == pytest.approx(float((p * np.log(p / q)).sum()))


def test_sums_add_over_packs_and_divide_once():
    new = torch.tensor([0.0, 0.3, -0.4, 0.0], dtype=float64)
    old = torch.zeros(4, dtype=float64)
    c_pos = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=float64)
    c_neg = torch.tensor([0.0, 0.0, -1.0, -1.0], dtype=float64)
    count = torch.tensor([3.0, 1.0, 2.0, 4.0], dtype=float64)
    loss = surrogate(new, old, c_pos, c_neg)
    extra = {"entropy": torch.ones(4, dtype=float64), "gap": torch.tensor([0.1, 0.0, 0.2, 0.0], dtype=float64)}

    def sums(part: slice) -> LossSums:
        kept = {name: values[part] for name, values in extra.items()}
        args = (loss[part], new[part], old[part], c_pos[part], c_neg[part], count[part])
        return loss_sums(*args, (0.2, 0.2), kept)

    whole, parts = sums(slice(None)), LossSums.total([sums(slice(0, 1)), sums(slice(1, 4))])
    assert whole.metrics() == pytest.approx(parts.metrics())
    metrics = whole.metrics()
    assert whole.tokens == 10
    assert metrics["clipped_high"] == pytest.approx(1 / 10)
    assert metrics["clipped_low"] == pytest.approx(2 / 10)
    assert metrics["entropy"] == pytest.approx(1.0)
    assert metrics["gap"] == pytest.approx((0.3 + 0.4) / 10)
    assert metrics["kl_old"] == pytest.approx(-(0.3 - 0.8) / 10)
    assert LossSums().metrics()["ratio"] == 0.0
