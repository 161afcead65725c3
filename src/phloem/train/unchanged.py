"""Why a run changed no weight, read from what it logged."""

from __future__ import annotations

from pathlib import Path

from phloem.analysis.plots import read_metrics
from phloem.config import TrainConfig

__all__ = ["why_unchanged"]


def why_unchanged(folder: Path, config: TrainConfig) -> str:
    """The sentence for a run of `folder` whose weights are what they were: the cause and the remedy."""
    steps = [r for r in read_metrics(folder / "metrics.jsonl") if r["kind"] == "train"]
    said = f"{len(steps)} steps changed no weight: "
    if any(step["packs"] for step in steps):
        return (
            f"{said}the learning rate (optim.lr {config.optim.lr:g}) is too small for {config.model.dtype} weights; "
            "raise it, or set model.dtype to float32"
        )
    if all(step["verdict/unscored_share"] == 1.0 for step in steps):
        reason = _reason(folder)
        return f"{said}no rollout was scored; {'look at verdict/ in metrics.jsonl' if reason is None else reason}"
    reward = [step["reward"] for step in steps if step["reward"] is not None][-1]
    return (
        f"{said}no group had a spread of rewards (mean reward {reward:.2f} at the last step that was scored), and "
        "equal rewards train nothing; choose prompts that are neither too easy nor too hard for the model, sample more "
        "rollouts of each, or give the reward more steps between wrong and right"
    )


def _reason(folder: Path) -> str | None:
    """Why the last rollout that says so was not scored; None where no rollouts were kept."""
    path = folder / "rollouts.jsonl"
    groups = read_metrics(path) if path.exists() else []
    leaves = [segment for group in groups for segment in group["segments"] if "verdict" in segment]
    for leaf in reversed(leaves):
        if leaf.get("detail"):
            remedy = "correct the gold answers" if leaf["verdict"] == "bad-gold" else "mend the reward"
            return f"{remedy}: {leaf['detail'].splitlines()[-1]}"
    return "the reward gives none of them a number" if leaves else None
