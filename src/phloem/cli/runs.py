"""Commands about runs: before, while and after a policy is trained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from phloem.cli.line import read_line, read_settings
from phloem.kinds import ConfigError, PhloemError
from phloem.presets import resolved
from phloem.settings import resolve, to_yaml

__all__ = ["doctor", "export", "inspect", "train"]


def train(words: Sequence[str]) -> None:
    """Train a model.

    Options:
      --config FILE       settings from a YAML file; may be given several times, the later file wins
      --print_config      print the resolved settings as YAML and stop
      --dry_run           print processes, packs, memory and disk that the run would take, without loading weights
      --SETTING VALUE     any setting below; beats every file
      --task.args.KEY V   one key of a setting that holds a mapping
      --resume RUN        go on with the run in this folder, from its newest complete checkpoint; its settings are
                          the folder's, and only those that leave what is learnt as it was may be given besides
                          (optim.steps, what is shown and kept)
    """
    line = read_settings("train", words, flags=("print_config", "dry_run"))
    files, resumed = line.take("config"), line.take("resume")
    if resumed and files:
        raise ConfigError("--resume takes its settings from the run folder: leave --config out")
    if resumed and line.option("run.folder") is not None:
        raise ConfigError("--resume names the folder that the run goes on in: leave --run.folder out")
    config = resolve([_settings_file(resumed[-1])] if resumed else files, line.pairs)
    if resumed:
        config = replace(config, run=replace(config.run, folder=resumed[-1]))
    if "print_config" in line.flags:
        credit = resolved(config.credit, config.sample.max_completion_tokens)
        print(to_yaml(replace(config, credit=credit)), end="")
        return
    if "dry_run" in line.flags:
        from phloem.train.dry_run import dry_run

        if said := dry_run(config, resume=bool(resumed)):
            print(said)
        return
    from phloem.train import train as run_training

    run_training(config, resume=bool(resumed))


def _settings_file(run: str) -> str:
    """The settings of a run folder."""
    path = os.path.join(os.path.expanduser(run), "config.yaml")
    if not os.path.exists(path):
        raise ConfigError(f"--resume {run} is not a run folder: it has no config.yaml")
    return path


def doctor(words: Sequence[str]) -> None:
    """Check a run's data, reward and prompts before its model loads.

    Options:
      --config FILE       settings from a YAML file; may be given several times, the later file wins
      --SETTING VALUE     any setting of `phloem train`; beats every file

    Every gold answer is scored against itself; the tokenizer is loaded, the weights are not. Exit status 0: a run can
    use everything (warnings are for you to judge). 1: something is unusable. 2: settings that cannot be honoured.
    """
    line = read_settings("doctor", words, flags=("print_config",))
    if line.flags:
        raise ConfigError("phloem doctor takes no --print_config; phloem train does")
    config = resolve(line.take("config"), line.pairs)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # graders fork; the tokenizer would warn of it
    from rich.console import Console

    from phloem.doctor import examine

    console = Console(highlight=False)
    if console.is_terminal:
        with console.status("looking at data, reward and prompts ..."):
            report = examine(config)
        console.print(report)
    else:
        report = examine(config)
        print(report)
    if not report.ok:
        raise PhloemError("a run could not use all of this: see `fail` above")


def inspect(words: Sequence[str]) -> None:
    """Show what a run folder holds: `phloem inspect RUN [--step N [--group I]]`.

    Without a step: the settings in a line, the evaluations, the figures of the first and last steps, and what the
    rewards say about the number of thoughts and answers.
    With one: the tree of a group (the first, or the I-th from 0) with its rewards and the credit of its nodes, in
    thousandths.
    """
    line = read_line("inspect", words, options=("step", "group"))
    for name, text in line.pairs:
        if not text.isdecimal():
            raise ConfigError(f"--{name} is {text!r}; it takes a whole number")
    if len(line.words) != 1:
        raise ConfigError(f"phloem inspect needs a run folder, and was given {len(line.words)}")
    from phloem.analysis.runs import drawn_group, summary

    run, step = Path(line.words[0]), line.option("step")
    print(summary(run) if step is None else drawn_group(run, int(step), int(line.option("group") or 0)))


def export(words: Sequence[str]) -> None:
    """Write a trained policy as one plain model: `phloem export RUN FOLDER`.

    Adapters are merged into the weights they were trained on. RUN is a run folder, or a model's folder within one
    (RUN/best, RUN/checkpoints/step-000020/model).
    """
    folders = read_line("export", words).words
    if len(folders) != 2:
        raise ConfigError(f"phloem export takes a run folder and a new folder, and was given {len(folders)}")
    from phloem.train.export import export as run_export

    run, target = map(Path, folders)
    print(run_export(run, target))
