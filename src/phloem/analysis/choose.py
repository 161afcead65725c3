"""How many thoughts and how many answers each, at the same cost: read from a run's rewards.

Source: GRPO-MA (arXiv 2509.24494), on the variance of the thought advantage. With sigma² the variance of the rewards
within a thought and S² that of the thoughts' true values, the advantage of a thought from M answers has, over random
thoughts, a variance given its true value of about

    sigma² / (M S² + sigma²)

(to first order in 1/M it is the paper's sigma² / (M S²); unlike that it holds for noisy thoughts too. By Monte Carlo
with normal values at sigma² = M S² it is .56 for K = 4 and .51 for K = 16, where this gives .50). It does not count how
many thoughts there are, so it alone would always ask for fewer thoughts with more answers. What the thoughts of a group
teach grows with their number, less one for the baseline, and with the share of the advantage that is no noise:

    signal(K, M) = (K - 1) M S² / (M S² + sigma²)

Among shapes of the same cost K (t + M a), with t and a the mean tokens of a thought and of an answer, it is largest
near M = sqrt(sigma² t / (S² a)): the optimum of two-stage sampling. Departure from the paper: this criterion is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phloem.analysis.variance import thought_variance
from phloem.tree import Group

__all__ = ["Advice", "Shape", "advantage_variance", "advise"]

ANSWERS = (1, 2, 3, 4, 6, 8, 12, 16)
LEAST_GROUPS = 5


@dataclass(frozen=True)
class Shape:
    """K thoughts with M answers each, at about the cost of the run's own shape.

    Attributes:
        thoughts, answers: K and M.
        variance: of a thought's advantage given its true value, with its interval.
        signal: (K - 1) (1 - variance), over that of the run's shape.
        chosen: share of the resampled runs in which no other shape has a larger signal.
    """

    thoughts: int
    answers: int
    variance: float
    low: float
    high: float
    signal: float
    chosen: float


@dataclass(frozen=True)
class Advice:
    """What the logged rewards say about K and M.

    Attributes:
        groups: that told something: two or more thoughts with two or more scored answers.
        within: sigma², mean over groups.
        between: S², mean over groups: variance of the thoughts' values less the answers' noise in them.
        between_low, between_high: interval of `between`.
        thought_tokens, answer_tokens: mean sampled tokens of a segment.
        shapes: by number of answers; empty where `between` is not above 0.
    """

    groups: int
    within: float
    between: float
    between_low: float
    between_high: float
    thought_tokens: float
    answer_tokens: float
    shapes: tuple[Shape, ...]

    @property
    def best(self) -> Shape | None:
        return max(self.shapes, key=lambda shape: shape.signal, default=None)


def advantage_variance(within: np.ndarray, between: np.ndarray, answers: int) -> np.ndarray:
    """Variance of a thought's advantage given its true value, in [0, 1]; 1 where all thoughts are worth the same."""
    noise = np.asarray(within, dtype=float)
    signal = answers * np.maximum(between, 0)
    return np.divide(noise, signal + noise, out=np.ones_like(noise), where=(signal > 0))


def advise(
    groups: Sequence[Group], thoughts: int, answers: int, confidence: float = 0.95, draws: int = 2000
) -> Advice | None:
    """What rewards of K x M groups say about other shapes; None where too few groups (5) tell anything.

    Intervals are percentile bootstraps over groups with a fixed seed.

    Args:
        groups: logged ones, with rewards.
        thoughts, answers: the run's K and M; the cost of other shapes is held to theirs.
        confidence: of the intervals.
        draws: resampled runs.
    """
    known = [found for g in groups if (found := _group_figures(g)) is not None]
    if len(known) < LEAST_GROUPS:
        return None
    figures = np.array(known)
    rng = np.random.default_rng(0)
    means = figures[rng.integers(0, len(figures), (draws, len(figures)))].mean(1)
    tail = 100 * (1 - confidence) / 2
    within, between, thought, answer = figures.mean(0)
    low, high = np.percentile(means[:, 1], [tail, 100 - tail])
    shapes = _shapes(figures.mean(0), means, thoughts, answers, tail) if between > 0 else ()
    return Advice(len(known), within, between, float(low), float(high), thought, answer, shapes)


def _shapes(mean: np.ndarray, means: np.ndarray, thoughts: int, answers: int, tail: float) -> tuple[Shape, ...]:
    cost = thoughts * (mean[2] + answers * mean[3])
    candidates = {m: max(2, round(cost / (mean[2] + m * mean[3]))) for m in ANSWERS} | {answers: thoughts}
    candidates = {m: k for m, k in sorted(candidates.items()) if k * (mean[2] + m * mean[3]) <= 1.1 * cost}
    noise = {m: advantage_variance(means[:, 0], means[:, 1], m) for m in candidates}
    signals = np.stack([(k - 1) * (1 - noise[m]) for m, k in candidates.items()])
    wins = np.bincount(signals.argmax(0), minlength=len(candidates)) / len(means)
    own = (thoughts - 1) * (1 - advantage_variance(mean[0], mean[1], answers))
    found = []
    for (m, k), chosen in zip(candidates.items(), wins, strict=True):
        variance = float(advantage_variance(mean[0], mean[1], m))
        low, high = np.percentile(noise[m], [tail, 100 - tail])
        signal = (k - 1) * (1 - variance) / own if own > 0 else float("nan")
        found.append(Shape(k, m, variance, float(low), float(high), float(signal), float(chosen)))
    return tuple(found)


def _group_figures(group: Group) -> tuple[float, float, float, float] | None:
    """sigma², S² without the answers' noise, tokens of a thought and of an answer; None: the group does not tell."""
    found = thought_variance(group)
    if np.isnan(found.within) or np.isnan(found.between):
        return None
    scored = group.scored()
    children = np.bincount(scored.parents_S[scored.parents_S >= 0], minlength=len(scored.segments))
    forked = [s for s, level in enumerate(scored.levels_S) if level == 1 and children[s]]
    leaves = [s for s in scored.leaves if scored.levels_S[s] > 1]
    noise = found.within * float(np.mean(1 / children[forked]))
    thought, answer = (float(np.mean([len(scored.segments[s]) for s in part])) for part in (forked, leaves))
    return found.within, found.between - noise, thought, answer
