"""Attention by calls: outputs and gradients of autograd over one masked softmax, on the fused kernel and without it."""

from __future__ import annotations

import pytest
import torch

from phloem.forward import calls
from phloem.forward.calls import Call, Plan, attend

ABOVE, OWN, HEADS, SHARED, SIZE = 3, 7, 4, 2, 5
# One chain from its first token, one with a gap above it, and two queries that do not see each other.
SEEN = (
    (0, 2, ((1, 0, 2),), None),
    (2, 5, ((0, 0, 3), (1, 1, 5)), None),
    (5, 7, ((0, 1, 2), (1, 0, 1), (1, 5, 7)), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)),
)


def added(queries: int, keys: int, seen: torch.Tensor | None) -> torch.Tensor | None:
    if seen is None and queries == keys:
        return None
    seen = torch.ones(queries, keys).tril(keys - queries).bool() if seen is None else seen
    return torch.where(seen, 0.0, -torch.inf).double()


def the_plan() -> Plan:
    made = []
    for start, stop, runs, seen in SEEN:
        keys = sum(b - a for _, a, b in runs)
        made.append(Call(start, stop, runs, added(stop - start, keys, seen)))
    return Plan(tuple(made), torch.float64)


def whole_mask() -> torch.Tensor:
    """The same as one mask over all keys, those above first."""
    mask = torch.full((OWN, ABOVE + OWN), -torch.inf, dtype=torch.float64)
    for call in the_plan().calls:
        places = torch.cat([torch.arange(a, b) + which * ABOVE for which, a, b in call.keys])
        queries = call.stop - call.start
        seen = torch.zeros(queries, queries).masked_fill(torch.ones(queries, queries).triu(1).bool(), -torch.inf)
        mask[call.start : call.stop, places] = seen.double() if call.mask is None else call.mask
    return mask


def tensors(of_values: int, last: int) -> list[torch.Tensor]:
    """Query, keys and values, above and own; `last`: the dimension whose elements are neighbours in memory."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(HEADS, OWN, SIZE)] + [(SHARED, n, size) for size in (SIZE, of_values) for n in (ABOVE, OWN)]
    made = [torch.randn((1, *shape), generator=draw, dtype=torch.float64) for shape in shapes]
    return [t.transpose(last, -1).contiguous().transpose(last, -1).requires_grad_() for t in made]


def by_softmax(query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
    key, value = (torch.cat(side, dim=2).repeat_interleave(HEADS // SHARED, dim=1) for side in (keys, values))
    return (torch.softmax(0.3 * query @ key.mT + whole_mask(), dim=-1) @ value).transpose(1, 2)


@pytest.mark.parametrize(
    ("of_values", "last", "fused"),
    [(SIZE, -1, True), (SIZE, -1, False), (SIZE + 2, -1, True), (SIZE, 2, True)],
    ids=["fused", "plain", "larger values", "strided"],
)
def test_equals_one_masked_softmax(of_values: int, last: int, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "FUSED", fused and calls.FUSED)
    given = tensors(of_values, last)
    query, keys, values = given[0], given[1:3], given[3:]
    wanted = by_softmax(query, keys, values)
    found = attend(the_plan(), query, keys, values, 0.3, torch.float64)
    weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(found, given, weight), torch.autograd.grad(wanted, given, weight), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_only_what_wants_a_gradient_gets_one() -> None:
    query, *others = (t.detach() for t in tensors(SIZE, -1))
    others[2].requires_grad_()
    attend(the_plan(), query, others[:2], others[2:], 0.3, torch.float64).sum().backward()
    assert others[2].grad is not None
    assert query.grad is None
    assert others[0].grad is None


def test_the_backward_may_run_twice() -> None:
    query, *others = tensors(SIZE, -1)
    total = attend(the_plan(), query, others[:2], others[2:], 0.3, torch.float64).sum()
    first, second = (torch.autograd.grad(total, query, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert first.abs().max() > 0
