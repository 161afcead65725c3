"""The slow twin of `credit.assign`: the same credit by plain loops over rollouts, one prefix at a time.

Short and obviously right rather than fast; `tests/equivalence` holds the two against each other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev

from phloem.presets import Rule
from phloem.tree import Group

__all__ = ["Prefix", "credit_by_prefix"]

Prefix = tuple[int, ...]
"""A token of the tree, named by the completion up to and including it."""


@dataclass(frozen=True)
class _Branch:
    level: int
    parent: int | None
    leaves: list[int]  # scored leaves below
    tokens: list[Prefix]  # sampled tokens


def credit_by_prefix(
    group: Group, rule: Rule, n_groups: int = 1, Z: int | None = None, U: int | None = None
) -> dict[Prefix, tuple[float, float, float]]:
    """(c_pos, c_neg, c_kl) of every sampled token of the scored rollouts; Z and U of the step, None: this group."""
    found = _branches(group, rule)
    reward = {leaf: segment.reward for leaf, segment in enumerate(group.segments)}
    scored = [leaf for leaf in group.leaves if reward[leaf] is not None]
    rewards = [float(reward[leaf] or 0.0) for leaf in scored]
    value = [fmean(float(reward[leaf] or 0.0) for leaf in b.leaves) for b in found]
    tolerance = 2.0**-23 * max([abs(r) for r in rewards] + [2.0**-126])

    rows = [_prefixes(group, leaf) for leaf in scored]
    Z_g, U_g = sum(len(r) for r in rows), len({p for r in rows for p in r})
    credit: dict[Prefix, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for i, b in enumerate(found):
        level = [j for j, other in enumerate(found) if other.level == b.level]
        others = [value[j] for j in level if j != i]
        below = [x for x in scored if b.parent is None or b.parent in group.path(x)[:-1]]
        near = [value[j] for j, other in enumerate(found) if other.parent == b.parent]
        compared, baseline = {
            "group": (rewards, fmean(rewards)),
            "level": ([value[j] for j in level], fmean([value[j] for j in level])),
            "siblings": (near, fmean(near)),
            "parent": ([rewards[scored.index(x)] for x in below], fmean(rewards[scored.index(x)] for x in below)),
            "leave-one-out": ([value[j] for j in level], fmean(others) if others else value[i]),
            "none": ([value[j] for j in level], 0.0),
        }[rule.baseline]
        advantage = value[i] - baseline
        if rule.baseline != "none" and abs(advantage) <= tolerance:
            advantage = 0.0
        if rule.scale != "none":
            spread = rewards if rule.scale == "std-rewards" else compared
            if max(spread) - min(spread) <= tolerance:
                advantage = 0.0
            else:
                advantage /= (stdev if rule.ddof == 1 else pstdev)(spread) + rule.eps

        size, length = len(rewards), len(b.tokens)
        divisor = {
            "token": Z_g if Z is None else Z,
            "token-group": n_groups * Z_g,
            "distinct": U_g if U is None else U,
            "distinct-group": n_groups * U_g,
            "sequence": n_groups * size * length,
            "segment": n_groups * len(level) * length,
            "constant": n_groups * size * (rule.max_completion_tokens or 0),
            "rollout": n_groups * size,
        }[rule.normaliser]
        for prefix in b.tokens:
            count = sum(prefix in found[j].tokens for j in level)
            share = 1 / count if rule.share == "once" else 1.0
            kl_share = 1 / count if rule.kl_share == "once" else 1.0
            entry = credit[prefix]
            entry[0] += share / divisor * max(advantage, 0.0)
            entry[1] += share / divisor * min(advantage, 0.0)
            entry[2] += kl_share / divisor
    return {prefix: (c[0], c[1], c[2]) for prefix, c in credit.items()}


def _branches(group: Group, rule: Rule) -> list[_Branch]:
    scored = [leaf for leaf in group.leaves if group.segments[leaf].reward is not None]
    if rule.unit == "rollout":
        return [_Branch(1, group.segments[x].parent, [x], _prefixes(group, x)) for x in scored]
    found: list[_Branch] = []
    for s in range(len(group.segments)):
        leaves = [leaf for leaf in scored if s in group.path(leaf)]
        if leaves:
            path = group.path(s)
            found.append(_Branch(len(path), group.segments[s].parent, leaves, _prefixes(group, s, own=True)))
    return found


def _prefixes(group: Group, leaf: int, own: bool = False) -> list[Prefix]:
    """The sampled tokens of the path to a segment (or of that segment alone), each as the prefix ending in it."""
    prefixes: list[Prefix] = []
    row: list[int] = []
    for s in group.path(leaf):
        segment = group.segments[s]
        for token, sampled in zip(segment.tokens.tolist(), segment.sampled_mask.tolist(), strict=True):
            row.append(token)
            if sampled and (s == leaf or not own):
                prefixes.append(tuple(row))
    return prefixes
