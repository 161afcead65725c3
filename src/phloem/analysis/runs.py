"""A finished or running run, read back from its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phloem import credit, presets
from phloem.analysis.choose import LEAST_GROUPS, Advice, advise
from phloem.analysis.plots import read_metrics
from phloem.config import TrainConfig
from phloem.credit.draw import draw_credit
from phloem.kinds import ConfigError
from phloem.means import known_mean
from phloem.settings import load_config
from phloem.tree import Finish, Group, Segment

__all__ = ["drawn_group", "group_of", "summary"]

FIGURES = (
    ("reward", "{:.3f}"),
    ("zero_spread", "{:.0%}"),
    ("truncated", "{:.0%}"),
    ("within_variance", "{:.3f}"),
    ("completion_tokens", "{:.1f}"),
    ("token_ratio", "{:.2f}"),
    ("entropy", "{:.3f}"),
    ("gap", "{:.4f}"),
    ("grad_norm", "{:.3f}"),
    ("seconds", "{:.1f}"),
)
"""Key in the metrics and format."""


def _config(run: Path) -> TrainConfig:
    if not (run / "config.yaml").exists():
        raise ConfigError(f"{run} is not a run folder: it has no config.yaml")
    return load_config(run / "config.yaml")


def summary(run: Path, window: int = 5) -> str:
    """What was asked for, the evaluations, and the training figures of the first and last steps.

    Args:
        run: a run folder; the run may still be going on.
        window: steps at either end that the figures are means of.

    Raises:
        ConfigError: not a run folder, or nothing was logged yet.
    """
    config = _config(run)
    records = read_metrics(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
    steps = [record for record in records if record["kind"] == "train"]
    lines = [
        f"{config.task.name}, {config.credit.preset} on {config.sample.shape}, "
        f"{config.model.path}, seed {config.run.seed}",
        f"{len(steps)} of {config.optim.steps} steps",
    ]
    for record in records:
        if record["kind"] == "evaluation":
            error = record["standard_error"]
            spread = "" if error is None else f" ± {1.96 * error:.3f}"
            reward, baseline = (_shown(record[key], "{:.3f}") for key in ("reward", "constant_baseline"))
            lines.append(
                f"held-out reward at step {record['step']}: {reward}{spread} "
                f"({record['prompts']} prompts x {record['samples']}; always one answer {baseline})"
            )
    if steps:
        window = max(1, min(window, len(steps) // 2))
        lines += ["", f"{'mean of':<20} first {window:<4} last {window}"]
        for key, form in FIGURES:
            first, last = (
                _shown(known_mean([record.get(key) for record in part]), form)
                for part in (steps[:window], steps[-window:])
            )
            lines.append(f"  {key:<18} {first:<10} {last}")
    return "\n".join([*lines, *_choice(run, config)])


def _choice(run: Path, config: TrainConfig) -> list[str]:
    """What the logged rewards say about the number of thoughts and answers, for groups of two levels."""
    levels = config.sample.levels
    if len(levels) != 2 or not (run / "rollouts.jsonl").exists():
        return []
    thoughts, answers = (level.fan_out for level in levels)
    advice = advise([group_of(record) for record in read_metrics(run / "rollouts.jsonl")], thoughts, answers)
    title = ["", "thoughts and answers at the cost of this run's"]
    if advice is None:
        return [
            *title,
            f"  fewer than {LEAST_GROUPS} groups have two thoughts with two scored answers: nothing can be said yet",
        ]
    return [*title, *_advice_lines(advice, answers)]


def _advice_lines(advice: Advice, answers: int) -> list[str]:
    lines = [
        f"  variance of the reward within thoughts {advice.within:.4f}, of the thoughts' true values "
        f"{advice.between:.4f} [{advice.between_low:.4f}, {advice.between_high:.4f}]; {advice.groups} groups",
        f"  a thought has {advice.thought_tokens:.1f} tokens, an answer {advice.answer_tokens:.1f}",
    ]
    if advice.best is None:
        return [
            *lines,
            "  thoughts do not differ beyond their answers' noise: their advantages are noise at any K and M",
        ]
    lines.append(f"  {'K x M':<10} {'variance of a thought advantage':<34} {'signal':<8} best in")
    for shape in advice.shapes:
        spread = f"{shape.variance:.2f} [{shape.low:.2f}, {shape.high:.2f}]"
        name = f"{shape.thoughts} x {shape.answers}"
        own = "  (this run)" if shape.answers == answers else ""
        lines.append(f"  {name:<10} {spread:<34} {shape.signal:<8.2f} {shape.chosen:.0%}{own}")
    best = advice.best
    doubt = (
        "; the interval of the true values' variance holds 0, so wait for more groups"
        if advice.between_low <= 0
        else ""
    )
    lines.append(
        f"  try sample.thoughts {best.thoughts}, sample.answers {best.answers}: the largest signal, and in "
        f"{best.chosen:.0%} of resampled runs{doubt}"
    )
    return lines


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None or np.isnan(value) else form.format(value)


def drawn_group(run: Path, step: int, index: int = 0) -> str:
    """The tree of a logged group with the credit of its nodes under the run's rule.

    Credit is that of the group alone: rules that divide by counts of the whole step differ by that factor.

    Args:
        run: a run folder with rollouts.
        step: training step, from 1.
        index: of the group in its step, from 0.

    Raises:
        ConfigError: no such group, or the folder lacks the rollouts.
        ModelError: the run saved no model, and the one it started from is gone.
    """
    config = _config(run)
    rollouts = run / "rollouts.jsonl"
    if not rollouts.exists():
        raise ConfigError(f"{run} has no rollouts.jsonl; it was run with run.save_rollouts false")
    logged = read_metrics(rollouts)
    records = [record for record in logged if record["step"] == step]
    if not records:
        raise ConfigError(f"{run} has no groups at step {step}; it has steps {_spans([r['step'] for r in logged])}")
    if not 0 <= index < len(records):
        raise ConfigError(f"{run} has {len(records)} groups at step {step}; group {index} is not one of them")
    record = records[index]
    group = group_of(record)
    assigned = credit.assign(group, presets.from_config(config.credit, config.sample.max_completion_tokens))
    rewards = ", ".join("not scored" if np.isnan(reward) else f"{reward:g}" for reward in group.rewards_R)
    head = f"step {step}, example {record['id']}, answer {record['answer']}; rewards {rewards}"
    if not assigned.tree.group.segments:
        return f"{head}\nno rollout was scored, so nothing is credited"
    return f"{head}\n{draw_credit(assigned, _decoder(run, config), rewards=True)}"


def _spans(steps: Sequence[int]) -> str:
    """Whole numbers as spans, `1 to 4, 7`."""
    known = sorted(set(steps))
    starts = [n for n in known if n - 1 not in known]
    ends = [n for n in known if n + 1 not in known]
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True)) or "none"


def group_of(record: Mapping[str, Any]) -> Group:
    """The group that a line of rollouts.jsonl describes, without its logprobs."""
    return Group(
        np.array(record["prompt_ids"], dtype=np.int64),
        tuple(
            Segment(
                np.array(segment["ids"], dtype=np.int64),
                parent=segment["parent"],
                sampled=np.array(segment["sampled"], dtype=bool) if "sampled" in segment else None,
                finish=Finish(segment["finish"]),
                reward=segment.get("reward"),
            )
            for segment in record["segments"]
        ),
    )


def _decoder(run: Path, config: TrainConfig) -> Callable[[list[int]], str]:
    """Ids to text by the tokenizer the run saved; by its model's, where a run was stopped before it saved one."""
    path = run / "model" / "tokenizer.json"
    if path.exists():
        from tokenizers import Tokenizer

        saved = Tokenizer.from_file(str(path))
        return lambda ids: saved.decode(ids, skip_special_tokens=False)
    from phloem.models import decode_raw, load_tokenizer

    tokenizer, _ = load_tokenizer(config.model)
    return lambda ids: decode_raw(tokenizer, ids)
