"""From rewarded groups to an optimiser update: credit, packs, loss.

Nothing here knows a rule by name: a rule is data, and credit is three numbers per tree token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from phloem import credit
from phloem.forward import (
    Logprobs,
    Machine,
    Pack,
    bounded_backward,
    bounded_logprobs,
    logprobs,
    pack,
    split_into_packs,
)
from phloem.forward.shell import Shell
from phloem.kinds import PhloemError
from phloem.loss import LossSums, k3, loss_sums, surrogate
from phloem.presets import Rule
from phloem.train.ranks import ALONE, Ranks
from phloem.train.sharded import like, overwrite, set_aside, whole
from phloem.tree import Group, PrefixTree

__all__ = ["Batch", "Machine", "Objective", "PackedCredit", "Reference", "make_batch", "update"]


@dataclass(frozen=True)
class Objective:
    """What is minimised on each trained token, beside the credit."""

    rule: Rule
    temperature: float = 1.0
    dual_clip: float | None = None
    entropy: float = 0.0
    tis_cap: float | None = None

    def mismatch(self, old_E: Tensor, sampled_E: Tensor) -> Tensor:
        """The weight of each token's credit: min(pi_old by our forward / pi_old as the sampler reported, tis_cap).

        Truncated importance sampling: rollouts come from the sampler's policy, which rounds otherwise than ours. The
        ratio of the surrogate stays pi / pi_old, so clipping is not touched. 1 where it is off.
        """
        if self.tis_cap is None:
            return torch.ones_like(old_E)
        return (old_E - sampled_E).exp().clamp(max=self.tis_cap)


@dataclass(frozen=True, eq=False)
class PackedCredit:
    """A pack with what its trained tokens need, aligned with `pack.trained_E`.

    Attributes:
        pack: the trees.
        c_pos_E, c_neg_E, c_kl_E: credit.
        count_E: scored rollouts that sampled the token.
        sampled_E: the sampler's logprob (mean over those rollouts), in nats.
        old_E: logprob of the policy at sampling, by our forward; None before the first forward of the step.
        ref_E: logprob of the reference; None without a reference.
    """

    pack: Pack
    c_pos_E: Tensor
    c_neg_E: Tensor
    c_kl_E: Tensor
    count_E: Tensor
    sampled_E: Tensor
    old_E: Tensor | None = None
    ref_E: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """The groups of an optimiser step with their credit, and the packs that train them.

    Packs hold at most `pack_tokens` tokens, but for those of one larger tree.

    Attributes:
        credits: of every group of the step.
        trees: that are trained, on whichever process.
        packs: of this process.
        pack_count: packs of all processes.
        totals: over all groups.
        pack_tokens: the budget.
    """

    credits: tuple[credit.Credit, ...]
    trees: tuple[PrefixTree, ...]
    packs: tuple[PackedCredit, ...]
    pack_count: int
    totals: credit.Totals
    pack_tokens: int


def make_batch(
    groups: Sequence[Group],
    objective: Objective,
    pack_tokens: int,
    device: torch.device | str,
    ranks: Ranks = ALONE,
    cost: Callable[[PrefixTree], float] = len,
) -> Batch:
    """Assigns credit to rewarded groups and packs those that have something to train.

    A group whose credit is 0 everywhere (equal rewards, and neither KL nor entropy in the objective) needs no
    forward; it still counts in every normaliser.

    Args:
        groups: all groups of the step, the same on every process: normalisers are counts over all of them.
        objective: the rule, and what else is minimised.
        pack_tokens: tree tokens of a pack. Where weights are spread over processes, no tree is cut into pieces.
        device: of the packs.
        ranks: the processes that the trees are distributed over, so that each gets the same `cost`.
        cost: of training a tree.
    """
    trees = [PrefixTree.from_group(group.scored()) for group in groups]
    totals = credit.Totals.of(trees)
    credits = tuple(credit.assign(t.group, objective.rule, totals, t) for t in trees)
    everything = objective.rule.beta > 0 or objective.entropy > 0
    trained = [c for c in credits if c.tree.U and (everything or c.c_pos_T.any() or c.c_neg_T.any())]
    shares = ranks.shares([cost(c.tree) for c in trained])
    parts = [[[share[i] for i in part] for part in _split(trained, share, pack_tokens)] for share in shares]
    packs = [_packed([trained[i] for i in part], device) for part in parts[ranks.rank]]
    trees = tuple(c.tree for c in trained)
    if ranks.sharded:  # weights are gathered pack by pack: every process must have as many, of one piece each
        packs += [_nothing(device)] * (max(map(len, parts)) - len(packs))
        pack_tokens = max([pack_tokens, *map(len, trees)])
    return Batch(credits, trees, tuple(packs), sum(map(len, parts)), totals, pack_tokens)


def _nothing(device: torch.device | str) -> PackedCredit:
    """A pack of one token without credit: it takes part in a forward and backward and changes nothing."""
    empty = torch.zeros(1, device=device)
    return PackedCredit(pack([PrefixTree.from_rollouts([0], [[0]])]).to(device), *[empty] * 5)


def _split(trained: Sequence[credit.Credit], share: Sequence[int], pack_tokens: int) -> list[list[int]]:
    """The packs of a process's share, as places in it."""
    return split_into_packs([trained[i].tree for i in share], pack_tokens)


def _packed(parts: Sequence[credit.Credit], device: torch.device | str) -> PackedCredit:
    def joined(name: str) -> Tensor:
        arrays = [getattr(c, name)[c.tree.sampled_T] for c in parts]
        return torch.from_numpy(np.concatenate(arrays)).to(device, torch.float32)

    counts = [c.tree.count_T[c.tree.sampled_T] for c in parts]
    sampled = [_sampled_logprobs(c.tree)[c.tree.sampled_T] for c in parts]
    return PackedCredit(
        pack([c.tree for c in parts]).to(device),
        joined("c_pos_T"),
        joined("c_neg_T"),
        joined("c_kl_T"),
        torch.from_numpy(np.concatenate(counts)).to(device, torch.float32),
        torch.from_numpy(np.concatenate(sampled)).to(device, torch.float32),
    )


def _sampled_logprobs(tree: PrefixTree) -> np.ndarray:
    """Mean over rollouts of the sampler's logprob of each tree token; NaN where the policy sampled nothing.

    Raises:
        PhloemError: a segment without logprobs: the gap between sampler and trainer could not be watched.
    """
    total_T, count_T = np.zeros(len(tree)), np.zeros(len(tree))
    for s, segment in enumerate(tree.group.segments):
        if segment.logprobs is None:
            raise PhloemError("the sampler gave a segment no logprobs; it must report one for each sampled token")
        own = segment.sampled_mask
        index = tree.segment_index(s)[own]
        total_T += np.bincount(index, segment.logprobs[own], minlength=len(tree))
        count_T += np.bincount(index, minlength=len(tree))
    return np.divide(total_T, count_T, out=np.full(len(tree), np.nan), where=count_T > 0)


def update(model: nn.Module, batch: Batch, objective: Objective, machine: Machine) -> tuple[Batch, LossSums]:
    """Adds the gradient of the batch's loss to the parameters, pack by pack; a tree over the budget goes depth first.

    The loss is a sum over tokens whose normaliser is in the credit, so packs and pieces add up to the same gradient
    however the trees are spread over them. The first call of a step takes its own detached logprobs as the old ones.

    Returns:
        The batch with old logprobs filled in, and the sums behind the metrics.
    """
    packs, sums = [], LossSums()
    for part in batch.packs:
        loss = _TokenLoss(part, objective)
        if len(part.pack) > batch.pack_tokens:
            bounded_backward(model, part.pack, batch.pack_tokens, loss, machine, objective.temperature)
        else:
            with machine.autocast():
                found = logprobs(model, part.pack, objective.temperature)
            machine.backward(loss(slice(None), found))
        sums += loss.sums
        packs.append(replace(part, old_E=loss.old_E))
    return replace(batch, packs=tuple(packs)), sums


class _TokenLoss:
    """The loss of a pack's trained tokens, of all at once or of some at a time, and the sums behind the metrics.

    Attributes:
        old_E: the old logprobs; filled in as tokens come where the pack has none yet.
        sums: over the tokens that came.
    """

    def __init__(self, part: PackedCredit, objective: Objective) -> None:
        self.part, self.objective = part, objective
        self.old_E, self.sums = part.old_E, LossSums()

    def __call__(self, index_E: Tensor | slice, found: Logprobs) -> Tensor:
        """The sum of the losses of some trained tokens."""
        part, rule = self.part, self.objective.rule
        now_E = found.logprobs_E.float()
        if self.old_E is None:
            self.old_E = now_E.new_zeros(len(part.sampled_E))
        if part.old_E is None:
            self.old_E[index_E] = now_E.detach()
        old_E, sampled_E, c_kl_E = self.old_E[index_E], part.sampled_E[index_E], part.c_kl_E[index_E]
        weight_E = self.objective.mismatch(old_E, sampled_E)
        c_pos_E, c_neg_E = weight_E * part.c_pos_E[index_E], weight_E * part.c_neg_E[index_E]
        loss_E = surrogate(now_E, old_E, c_pos_E, c_neg_E, rule.clip_low, rule.clip_high, self.objective.dual_clip)
        extra = {
            "entropy": found.entropy_E.detach().float(),
            "gap": (old_E - sampled_E).abs(),
            "tis_weight": weight_E,
        }
        if part.ref_E is not None:
            extra["kl_ref"] = k3(now_E, part.ref_E[index_E])
            loss_E = loss_E + rule.beta * c_kl_E * extra["kl_ref"]
        if self.objective.entropy:
            loss_E = loss_E - self.objective.entropy * c_kl_E * found.entropy_E.float()
        clip = (rule.clip_low, rule.clip_high)
        self.sums += loss_sums(loss_E, now_E, old_E, c_pos_E, c_neg_E, part.count_E[index_E], clip, extra)
        return loss_E.sum()


class Reference:
    """The policy that the KL term holds on to: the trained parameters as they were when this was made."""

    def __init__(self, model: nn.Module) -> None:
        """To be made before the first update. What is not trained (a base under adapters) is not copied."""
        held = model.module if isinstance(model, Shell) else model
        trained = {name: p for name, p in held.named_parameters() if p.requires_grad}
        self._names = list(trained)
        self._kept = [(p, p.detach().clone()) for p in trained.values()]

    def state(self) -> dict[str, Tensor]:
        """The kept parameters by name, whole; to be called by all processes."""
        return {name: whole(kept).cpu().contiguous() for name, (_, kept) in zip(self._names, self._kept, strict=True)}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Holds on to what `state` returned in a run that goes on."""
        for name, (_, kept) in zip(self._names, self._kept, strict=True):
            kept.copy_(like(state[name], kept))

    @contextmanager
    def _in_place(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model is the reference: no gradient, no dropout. Weights change places, so nothing is rounded."""
        training, current = model.training, [set_aside(p) for p, _ in self._kept]
        model.eval()
        for p, kept in self._kept:
            overwrite(p, kept)
        try:
            with torch.no_grad():
                yield
        finally:
            for (p, _), data in zip(self._kept, current, strict=True):
                overwrite(p, data)
            model.train(training)

    def fill(self, model: nn.Module, batch: Batch, objective: Objective, machine: Machine) -> Batch:
        """The batch with the reference's logprobs of every trained token."""
        packs = []
        with self._in_place(model), machine.autocast():
            for part in batch.packs:
                if len(part.pack) > batch.pack_tokens:
                    found = bounded_logprobs(model, part.pack, batch.pack_tokens, objective.temperature)
                else:
                    found = logprobs(model, part.pack, objective.temperature)
                packs.append(replace(part, ref_E=found.logprobs_E.float()))
        return replace(batch, packs=tuple(packs))
