"""The chunked head: values, gradients, memory."""

import numpy as np
import pytest
import torch
from tiny_models import tiny_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from phloem.forward import head as head_module
from phloem.forward import linear_head, logprobs, pack, prepare
from phloem.forward.head import Targets, head_logprobs
from phloem.forward.split import Head
from phloem.tree import PrefixTree

D, V, P = 6, 11, 9


def example(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, Targets]:
    """Nine positions; some predict several tokens, some none."""
    torch.manual_seed(0)
    slots = torch.tensor([0, 0, 2, 3, 3, 3, 5, 8, 8])
    return torch.randn(P, D, dtype=dtype, requires_grad=True), Targets(torch.randint(0, V, (len(slots),)), slots)


def plainly(hidden: torch.Tensor, head: Head, targets: Targets, temperature: float) -> tuple[torch.Tensor, ...]:
    logits = head.module(hidden) * head.scale
    if head.cap is not None:
        logits = head.cap * torch.tanh(logits / head.cap)
    log_p = torch.log_softmax(logits / temperature, -1)
    return log_p[targets.slot_E, targets.ids_E], -(log_p.exp() * log_p).sum(-1)


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(D, V, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 0.1 * x.sum(-1, keepdim=True).sin()


HEADS = {
    "linear": lambda: Head(nn.Linear(D, V, bias=False, dtype=torch.float64)),
    "with a bias": lambda: Head(nn.Linear(D, V, dtype=torch.float64)),
    "scaled": lambda: Head(nn.Linear(D, V, dtype=torch.float64), scale=0.3),
    "capped": lambda: Head(nn.Linear(D, V, dtype=torch.float64), cap=1.5),
    "any module": lambda: Head(Wrapped()),
}


@pytest.mark.parametrize("columns", [1024, 3])
@pytest.mark.parametrize(("chunk", "keep"), [(1, 0), (4, 0), (4, 2 * 4 * V), (4, 65), (9, 0), (100, 10**6)])
@pytest.mark.parametrize("wanted", ["logprobs", "entropy", "both"])
@pytest.mark.parametrize("kind", HEADS)
def test_values_and_gradients(
    kind: str, wanted: str, chunk: int, keep: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "KEEP", keep)
    monkeypatch.setattr(linear_head, "COLUMNS", columns)
    hidden, targets = example()
    head = HEADS[kind]()
    parameters = [hidden, *head.module.parameters()]
    weights = torch.randn(len(targets.ids_E), dtype=torch.float64), torch.randn(P, dtype=torch.float64)

    def total(values: tuple[torch.Tensor, ...]) -> torch.Tensor:
        terms = [(w * v).sum() for w, v in zip(weights, values, strict=True)]
        return {"logprobs": terms[0], "entropy": terms[1], "both": terms[0] + terms[1]}[wanted]

    plain, chunked = plainly(hidden, head, targets, 0.7), head_logprobs(hidden, head, targets, 0.7, chunk)
    for a, b in zip(plain, chunked, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-13, atol=1e-13)
    for a, b in zip(
        torch.autograd.grad(total(plain), parameters), torch.autograd.grad(total(chunked), parameters), strict=True
    ):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


def test_a_frozen_head_gets_no_gradient_and_costs_none() -> None:
    hidden, targets = example()
    head = HEADS["with a bias"]()
    head.module.requires_grad_(False)
    head_logprobs(hidden, head, targets, 1.0, 4)[0].sum().backward()
    assert hidden.grad is not None
    assert head.module.weight.grad is None


def test_autocast_multiplies_in_bfloat16_and_normalises_in_float32() -> None:
    hidden, targets = example(torch.float32)
    head = Head(nn.Linear(D, V))
    with torch.autocast("cpu", torch.bfloat16):
        found = head_logprobs(hidden, head, targets, 1.0, 4)
        logits = head.module(hidden)
    assert logits.dtype == torch.bfloat16
    wanted = torch.log_softmax(logits.float(), -1)[targets.slot_E, targets.ids_E]
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=1e-6)
    found[0].sum().backward()
    assert head.module.weight.grad.dtype == torch.float32


def test_the_entropy_of_a_large_vocabulary_is_exact_to_rounding() -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(8, D), Head(nn.Linear(D, 50_000, bias=False))
    targets = Targets(torch.zeros(8, dtype=torch.int64), torch.arange(8))
    _, entropy = head_logprobs(hidden, head, targets, 1.0, 4)
    _, exact = plainly(hidden.double(), Head(head.module.double()), targets, 1.0)
    torch.testing.assert_close(entropy.double(), exact, rtol=0, atol=2e-5)


def test_large_logits_neither_overflow_nor_vanish() -> None:
    """The largest logit of a position may stand in any tile."""
    hidden, targets = example(torch.float32)
    head = Head(nn.Linear(D, 5000, bias=False))
    head.module.weight.data.mul_(torch.logspace(-2, 4, 5000)[torch.randperm(5000), None])
    with torch.no_grad():
        found, entropy = head_logprobs(hidden, head, targets, 1.0, 1)
        exact, exact_entropy = plainly(hidden.double(), Head(head.module.double()), targets, 1.0)
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(entropy.double(), exact_entropy, rtol=1e-4, atol=1e-6)


class _Largest(TorchDispatchMode):
    """Records the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *made])
        return out


@pytest.mark.parametrize("kind", ["linear", "capped"])
def test_memory_is_bounded_by_the_chunk(kind: str) -> None:
    """F01: no tensor of positions x vocabulary, forward or backward; nothing larger than chunk x V or the head."""
    positions, vocabulary, width, chunk = 640, 512, 8, 16
    hidden = torch.randn(positions, width, requires_grad=True)
    head = Head(nn.Linear(width, vocabulary, bias=False), cap=5.0 if kind == "capped" else None)
    targets = Targets(torch.randint(0, vocabulary, (positions,)), torch.arange(positions))
    with _Largest() as largest:
        logprobs, entropy = head_logprobs(hidden, head, targets, 1.0, chunk)
        (logprobs.sum() + entropy.sum()).backward()
    assert largest.elements <= max(chunk * vocabulary, positions * width)


@pytest.mark.model
def test_memory_of_the_whole_pass_is_bounded_by_the_chunk() -> None:
    """F01 for `logprobs`: no logits of prompts, and those of trained tokens a chunk at a time."""
    model = tiny_model("llama", vocab_size=4096)
    prepare(model)
    draw = np.random.default_rng(0)
    packed = pack([PrefixTree.from_rollouts(draw.integers(0, 4096, 60), [draw.integers(0, 4096, 60)])])
    with _Largest() as largest:
        found = logprobs(model, packed, chunk=16)
        (found.logprobs_E.sum() + found.entropy_E.sum()).backward()
    assert largest.elements <= model.lm_head.weight.numel() < 60 * 4096
