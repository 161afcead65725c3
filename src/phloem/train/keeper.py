"""Between a run and its checkpoints: what of policy, optimiser, reference and data goes into one, and comes back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from phloem.kinds import ConfigError, PhloemError
from phloem.settings import to_yaml
from phloem.train.checkpoint import Checkpoints, Progress, Saved, random_state, set_random_state
from phloem.train.folder import RunFolder
from phloem.train.optimiser import Optimiser
from phloem.train.policy import Policy
from phloem.train.prompts import PromptStream
from phloem.train.ranks import Ranks
from phloem.train.step import Reference

__all__ = ["Keeper"]


@dataclass(frozen=True, eq=False)
class Keeper:
    """Saves and restores; all processes call it together, the first one writes.

    `data` is a digest of the training examples.
    """

    policy: Policy
    optimiser: Optimiser
    reference: Reference | None
    prompts: PromptStream
    data: str
    folder: RunFolder
    ranks: Ranks

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder.path, self.policy.config.run.keep_checkpoints)

    def require_room(self) -> None:
        """Raises PhloemError: the disk has no room for as many checkpoints as the run will hold at a time."""
        copies = self.policy.config.run.keep_checkpoints + 1
        self.ranks.from_first(
            lambda: self.checkpoints.require_room(copies * self.policy.checkpoint_bytes, "checkpoints")
        )

    def save_reference(self) -> None:
        """Before the first checkpoint."""
        if self.reference is not None:
            kept = self.reference.state()
            self.ranks.from_first(lambda: self.checkpoints.save_reference(kept))

    def save(self, progress: Progress) -> None:
        """Writes all that a run needs to go on after this step.

        Raises:
            PhloemError: no room, or it cannot be written; older checkpoints are still there.
        """
        progress = replace(progress, updates=self.optimiser.updates, taken=self.prompts.taken)
        weights, optimiser = self.policy.fingerprint(), self.optimiser.state()
        states = self.ranks.gather(random_state())

        def write() -> None:
            self.checkpoints.require_room(self.policy.checkpoint_bytes, f"the checkpoint of step {progress.step}")
            saved = Saved(Path(), progress, weights, self.data, self.ranks.size, self.folder.lengths)
            self.checkpoints.save(saved, to_yaml(self.policy.config), self.policy.write, optimiser, states)

        self.ranks.from_first(write)

    def restore(self, saved: Saved) -> list[str]:
        """Brings optimiser, reference, data, logs and random states to where they were; the weights are loaded.

        Returns sentences on logs that lack lines.

        Raises:
            ConfigError: other training examples, or a run that has taken all its steps.
            PhloemError: weights that are not those that were saved.
        """
        step, steps, path = saved.progress.step, self.policy.config.optim.steps, self.folder.path
        if saved.data != self.data:
            raise ConfigError(
                f"the training examples are not those of the run in {path}: give it the same data again, or start a "
                "new run from its model"
            )
        if step > steps or (step == steps and (path / "summary.json").exists()):
            raise ConfigError(f"the run in {path} has taken its {step} steps: set optim.steps above {step} to go on")
        if self.policy.fingerprint() != saved.weights:
            raise PhloemError(f"{saved.model} was loaded with other weights than were saved: load it elsewhere to see")
        self.prompts.taken = saved.progress.taken
        self.optimiser.restore(saved.optimiser(), saved.progress.updates)
        if self.reference is not None:
            self.reference.restore(saved.reference())
        set_random_state(saved.random_states(), self.ranks.rank, self.policy.config.run.seed)
        return self.ranks.from_first(lambda: self._settle(saved))

    def _settle(self, saved: Saved) -> list[str]:
        self.folder.write_settings(self.policy.config)
        return self.folder.rewind(saved.lengths)
