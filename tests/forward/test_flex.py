"""Flex attention's mask: the blocks listed hold every pair that counts, and the full ones no other."""

import numpy as np
import pytest
import torch
from flex_on_cpu import flex_on_cpu
from tiny_models import tiny_model
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import BlockMask

from phloem.forward import flex, logprobs, pack, prepare
from phloem.forward.flex import BLOCK
from phloem.tree import Group, PrefixTree, Segment


def a_tree(seed: int, sizes: tuple[int, ...] = (90, 300, 40)) -> PrefixTree:
    """Two levels of three segments each, of up to the given lengths."""
    draw = np.random.default_rng(seed)
    prompt, thought, answer = sizes
    thoughts = [Segment(draw.integers(0, 1000, int(draw.integers(1, thought)))) for _ in range(3)]
    answers = [Segment(draw.integers(0, 1000, int(draw.integers(1, answer))), parent=n % 3) for n in range(9)]
    return PrefixTree.from_group(Group(draw.integers(0, 1000, prompt), (*thoughts, *answers)))


def pairs(trees: list[PrefixTree], window: int | None) -> torch.Tensor:
    """Which pairs count, by walking up from every token: bool, shape (T, T)."""
    packed = pack(trees)
    seen = torch.zeros(len(packed), len(packed), dtype=torch.bool)
    parent, depth = packed.parent_T.tolist(), packed.position_T.tolist()
    for q in range(len(packed)):
        k = q
        while k >= 0 and (window is None or depth[q] - depth[k] < window):
            seen[q, k] = True
            k = parent[k]
    return seen


def computed(mask: BlockMask, queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The pairs that the kernel counts, and the share of blocks it visits."""
    counted = torch.zeros(-(-queries // BLOCK) * BLOCK, -(-keys // BLOCK) * BLOCK, dtype=torch.bool)
    visited = torch.zeros(counted.shape[0] // BLOCK, counted.shape[1] // BLOCK, dtype=torch.bool)
    lists = ((mask.kv_num_blocks, mask.kv_indices, False), (mask.full_kv_num_blocks, mask.full_kv_indices, True))
    for numbers, indices, full in lists:
        assert numbers is not None
        assert indices is not None
        for i, number in enumerate(numbers[0, 0].tolist()):
            for j in indices[0, 0, i, :number].tolist():
                assert not visited[i, j]
                visited[i, j] = True
                q = torch.arange(BLOCK * i, BLOCK * (i + 1)).clamp(max=queries - 1)[:, None]
                k = torch.arange(BLOCK * j, BLOCK * (j + 1)).clamp(max=keys - 1)[None]
                block = torch.ones(BLOCK, BLOCK, dtype=torch.bool) if full else mask.mask_mod(0, 0, q, k)
                counted[BLOCK * i : BLOCK * (i + 1), BLOCK * j : BLOCK * (j + 1)] = block
                assert not full or (BLOCK * (i + 1) <= queries and BLOCK * (j + 1) <= keys)
    return counted[:queries, :keys], visited


@pytest.mark.parametrize("window", [None, 1, 150])
@pytest.mark.parametrize("seed", range(2))
def test_the_mask_is_the_interval_test(seed: int, window: int | None) -> None:
    trees = [a_tree(seed), a_tree(10 + seed)]
    packed, wanted = pack(trees), pairs(trees, window)
    for above in (0, 37, 90):  # below the first prompt's end every later token of the tree is under these
        mask = flex.block_mask(packed.end_T, packed.position_T, above, window)
        counted, visited = computed(mask, len(packed) - above, len(packed))
        assert torch.equal(counted, wanted[above:])
        if window is None:
            rows = torch.nn.functional.pad(wanted[above:], (0, -len(packed) % BLOCK, 0, -(len(packed) - above) % BLOCK))
            needed = rows.view(-1, BLOCK, rows.shape[1] // BLOCK, BLOCK).any(3).any(1)
            assert torch.equal(visited, needed)


def test_blocks_below_a_long_prompt_are_full() -> None:
    tree = a_tree(0, (600, 300, 100))
    mask = flex.block_mask(*pack([tree]).end_and_depth(torch.device("cpu")), 0, None)
    counted, _ = computed(mask, len(tree), len(tree))
    assert mask.full_kv_num_blocks is not None
    assert int(mask.full_kv_num_blocks.sum()) * BLOCK**2 > 0.7 * int(counted.sum())


def test_other_lengths_take_the_same_kernel() -> None:
    """Traced as on a GPU, run without fusing: what is counted is how often torch would compile."""
    counter = CompileCounterWithBackend("eager")
    kernel = flex.compiled(counter)
    assert torch._dynamo.config.recompile_limit >= flex.VARIANTS

    def compiles(trees: list[PrefixTree], above: int = 0, window: int | None = None) -> int:
        packed = pack(trees)
        mask = flex.block_mask(packed.end_T, packed.position_T, above, window)
        heads = [(4, len(packed) - above), (2, len(packed)), (2, len(packed))]
        query, key, value = (torch.randn(1, h, t, 16, requires_grad=True) for h, t in heads)
        kernel(query, key, value, block_mask=mask, enable_gqa=True, kernel_options=flex.KERNEL)
        return counter.frame_count

    with flex_on_cpu():
        whole = [compiles([a_tree(seed) for seed in seeds]) for seeds in ((0,), (1,), (2, 3))]
        pieces = [compiles([a_tree(seed)], above=above) for seed, above in ((0, 90), (1, 90), (1, 40), (2, 17))]
        windowed = [compiles([a_tree(seed)], window=60) for seed in (0, 1)]
    assert whole == [1, 1, 1]
    assert pieces[-1] == pieces[1] <= 3
    assert windowed == [pieces[-1] + 1] * 2


@pytest.mark.model
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_several_blocks_equal_the_dense_mask(kind: str) -> None:
    trees = [a_tree(1, (60, 200, 40)), a_tree(2, (90, 200, 40))]
    for tree in trees:
        tree.tokens_T[:] %= 61
    found = {}
    with flex_on_cpu():
        for engine in ("dense", "flex"):
            model = tiny_model(kind, torch.float64, max_position_embeddings=1024)
            prepare(model, engine)
            values = logprobs(model, pack(trees)).logprobs_E
            values.sum().backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            found[engine] = (values.detach(), torch.cat([g.flatten() for g in grads]))
    for flexed, dense in zip(found["flex"], found["dense"], strict=True):
        torch.testing.assert_close(flexed, dense, rtol=1e-9, atol=1e-9)
