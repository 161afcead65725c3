"""The `phloem` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from phloem import __version__
from phloem.config import EvaluateConfig, TrainConfig
from phloem.kinds import ConfigError, PhloemError, Stopped, in_words
from phloem.settings import nearest, resolve, sections, settings, to_yaml

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 done, 1 failed, 2 the request cannot be honoured."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words.pop(0) if words else "--help"
    try:
        if name in ("--help", "-h"):
            print(_overview())
        elif name == "--version":
            print(__version__)
        elif name in COMMANDS:
            COMMANDS[name](words)
        else:
            raise ConfigError(f"{name} is not a command; did you mean {nearest(name, list(COMMANDS))}?")
        sys.stdout.flush()
    except PhloemError as error:
        print(f"phloem: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Stopped as stopped:
        print(f"phloem: {stopped}", file=sys.stderr)
        return 128 + stopped.signal
    except KeyboardInterrupt:
        print("phloem: interrupted", file=sys.stderr)
        return 130
    return 0


def _overview() -> str:
    lines = [f"  {name:<9} {command.__doc__.splitlines()[0]}" for name, command in COMMANDS.items() if command.__doc__]
    return "\n".join(
        [
            "usage: phloem COMMAND [OPTIONS]",
            "",
            "Reinforcement learning with verifiable rewards on prefix trees.",
            "",
            *lines,
            "",
            "  phloem COMMAND --help says more; phloem --version prints the version.",
        ]
    )


# --------------------------------------------------------------------------------------------------- train


@dataclass
class _SettingsLine:
    """What a line of settings asks for, after a command that takes any."""

    files: list[str] = field(default_factory=list)
    values: list[tuple[str, str]] = field(default_factory=list)
    help: bool = False
    print_config: bool = False

    def take(self, option: str) -> str | None:
        """The value of an option that is no setting, removed from the settings; the last one counts."""
        given = [value for name, value in self.values if name == option]
        self.values = [(name, value) for name, value in self.values if name != option]
        return given[-1] if given else None


def _read_settings_line(words: Sequence[str]) -> _SettingsLine:
    line, rest = _SettingsLine(), list(words)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.removeprefix("--").partition("=")
        if word in ("--help", "-h"):
            line.help = True
        elif word == "--print_config":
            line.print_config = True
        elif not word.startswith("--"):
            raise ConfigError(f"{word!r} stands alone; settings are given as --name value")
        elif not has_value and not rest:
            raise ConfigError(f"--{name} has no value; write --{name} VALUE")
        else:
            value = value if has_value else rest.pop(0)
            if name == "config":
                line.files.append(value)
            else:
                line.values.append((name, value))
    return line


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
    dry = "--dry_run" in words
    line = _read_settings_line([word for word in words if word != "--dry_run"])
    if line.help:
        print(_settings_help(train, TrainConfig))
        return
    run = line.take("resume")
    if run is not None and line.files:
        raise ConfigError("--resume takes its settings from the run folder: leave --config out")
    config = resolve(line.files if run is None else [_settings_file(run)], line.values)
    if line.print_config:
        from phloem.presets import resolved

        credit = resolved(config.credit, config.sample.max_completion_tokens)
        print(to_yaml(replace(config, credit=credit)), end="")
        return
    if dry:
        from phloem.train.dry_run import dry_run

        if said := dry_run(config):
            print(said)
        return
    from phloem.train.loop import train as run_training

    run_training(
        config if run is None else replace(config, run=replace(config.run, folder=run)), resume=run is not None
    )


def _settings_file(run: str) -> str:
    """The settings of a run folder."""
    path = os.path.join(run, "config.yaml")
    if not os.path.exists(path):
        raise ConfigError(f"--resume {run} is not a run folder: it has no config.yaml")
    return path


def _settings_help(command: Callable[[Sequence[str]], None], root: type) -> str:
    lines = [f"usage: phloem {command.__name__} [OPTIONS]", "", textwrap.dedent(f"    {command.__doc__}").strip()]
    for prefix, owner in sections(root).items():
        if prefix:
            lines += ["", f"{prefix}: {(owner.__doc__ or '').splitlines()[0]}"]
        elif any("." not in name for name in settings(root)):
            lines += [""]
        for setting in settings(root).values():
            if setting.name.rpartition(".")[0] == prefix:
                default = "null" if setting.default is None else setting.default
                lines.append(f"  --{setting.name:<28} {in_words(setting.kind)} (default: {default})")
                lines += textwrap.wrap(setting.doc, 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ evaluate


def evaluate(words: Sequence[str]) -> None:
    """Judge a model on public benchmarks.

    Options:
      --config FILE       settings from a YAML file; may be given several times, the later file wins
      --print_config      print the resolved settings as YAML and stop
      --SETTING VALUE     any setting below; beats every file

    Benchmarks: aime24, math500, amc23, minerva, olympiadbench, gsm8k, humaneval, mbpp.
    Given again, the command goes on where it was stopped. `phloem compare` sets two evaluations side by side.
    """
    line = _read_settings_line(words)
    if line.help:
        print(_settings_help(evaluate, EvaluateConfig))
        return
    config = resolve(line.files, line.values, EvaluateConfig)
    if line.print_config:
        print(to_yaml(config), end="")
        return
    from phloem.evaluate import evaluate as run_evaluation

    done = run_evaluation(config, say=lambda text: print(text, flush=True))
    for found in done.report["benchmarks"].values():
        mean = found["mean"]
        print(
            f"{found['title']:<14} {mean['value']:.3f} ± {mean['standard_error']:.3f} "
            f"[{mean['low']:.3f}, {mean['high']:.3f}], {found['clipped_share']:.1%} clipped"
        )


def compare(words: Sequence[str]) -> None:
    """Compare two evaluations, paired by problem: `phloem compare FIRST SECOND [--json FILE]`.

    The gain of the second over the first has a bootstrap interval over problems. Evaluations of other problems, or
    under other settings, wordings or graders, are refused, and what differs is named.
    """
    line = _read_line(compare, words, ("json",))
    if line is None:
        return
    folders, out = line.words, line.options.get("json")
    if len(folders) != 2:
        raise ConfigError(f"phloem compare takes two evaluation folders, and was given {len(folders)}")
    from pathlib import Path

    from phloem.evaluate import compare as compare_folders

    comparison = compare_folders(*folders)
    print(comparison)
    if out is not None:
        try:
            Path(out).write_text(comparison.to_json(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {out} cannot be written ({error.strerror})") from None


# -------------------------------------------------------------------------------------------------- doctor


def doctor(words: Sequence[str]) -> None:
    """Check a run's data, reward and prompts before its model loads.

    Options:
      --config FILE       settings from a YAML file; may be given several times, the later file wins
      --SETTING VALUE     any setting of `phloem train`; beats every file

    Every gold answer is scored against itself; the tokenizer is loaded, the weights are not. Exit status 0: a run can
    use everything (warnings are for you to judge). 1: something is unusable. 2: settings that cannot be honoured.
    """
    line = _read_settings_line(words)
    if line.help:
        _asks_help(["--help"], doctor)
        return
    if line.print_config:
        raise ConfigError("phloem doctor takes no --print_config; phloem train does")
    config = resolve(line.files, line.values)
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


# -------------------------------------------------------------------------------------------------- tables


def presets(words: Sequence[str]) -> None:
    """List the named rules of credit; `phloem presets NAME` says more about one."""
    if _asks_help(words, presets):
        return
    from phloem.presets import PRESETS

    if not words:
        row = "{:<15} {:<8} {:<14} {:<6} {:<6} {:<15} {}".format
        print(row("preset", "unit", "baseline", "scale", "share", "normaliser", "clip"))
        for preset in PRESETS.values():
            rule = preset.rule
            clip = "none" if rule.clip_low is None else f"{rule.clip_low:g} / {rule.clip_high:g}"
            print(row(preset.name, rule.unit, rule.baseline, rule.scale, rule.share, rule.normaliser, clip))
    for name in words:
        if name not in PRESETS:
            raise ConfigError(f"{name} is not a preset; did you mean {nearest(name, list(PRESETS))}?")
        preset = PRESETS[name]
        print(f"{preset.name} ({preset.paper})\n  {preset.equation}")
        print(textwrap.fill(preset.note, 100, initial_indent="  ", subsequent_indent="  "))


def tasks(words: Sequence[str]) -> None:
    """List the built-in tasks, for `--task.name`."""
    if _asks_help(words, tasks):
        return
    if words:
        raise ConfigError(f"phloem tasks takes no {words[0]}")
    from phloem.tasks import names

    for name, line in names().items():
        print(f"{name:<24} {line}")


def inspect(words: Sequence[str]) -> None:
    """Show what a run folder holds: `phloem inspect RUN [--step N [--group I]]`.

    Without a step: the settings in a line, the evaluations, the figures of the first and last steps, and what the
    rewards say about the number of thoughts and answers.
    With one: the tree of a group (the first, or the I-th from 0) with its rewards and the credit of its nodes, in
    thousandths.
    """
    line = _read_line(inspect, words, ("step", "group"))
    if line is None:
        return
    for name, text in line.options.items():
        if not text.isdecimal():
            raise ConfigError(f"--{name} is {text!r}; it takes a whole number")
    if len(line.words) != 1:
        raise ConfigError(f"phloem inspect needs a run folder, and was given {len(line.words)}")
    from pathlib import Path

    from phloem.analysis.runs import drawn_group, summary

    run, step = Path(line.words[0]), line.options.get("step")
    print(summary(run) if step is None else drawn_group(run, int(step), int(line.options.get("group", 0))))


# ------------------------------------------------------------------------------------------------- studies


def study(words: Sequence[str]) -> None:
    """Test the papers' claims: `phloem study list`, `phloem study NAME [NAME ...]`.

    Options:
      --quick             cut down to seconds: shows that a study runs, judges nothing
      --no-training       read the training runs that are there; train none
      --minutes M         begin no piece of work after M minutes; the same command goes on from there
      --folder FOLDER     results: JSON, figures, pages and a summary (default: studies, with --quick studies-quick)
      --work FOLDER       pieces of work and training runs, made once (default: runs/studies, runs/studies-quick)
    """
    line = _read_line(study, words, ("minutes", "folder", "work"), ("quick", "no-training"))
    if line is None:
        return
    if line.words == ["list"]:
        from phloem.studies.names import NAMES

        print("\n".join(f"{name:<20} {asks}" for name, asks in NAMES.items()))
        return
    if not line.words:
        raise ConfigError("phloem study needs a name; `phloem study list` shows them")
    try:
        minutes = float(line.options["minutes"]) if "minutes" in line.options else None
    except ValueError:
        raise ConfigError(f"--minutes is {line.options['minutes']!r}; it takes a number") from None
    from pathlib import Path

    from phloem.studies.runner import run_studies

    quick = "quick" in line.flags
    tail = "-quick" if quick else ""
    folder, work = line.options.get("folder", f"studies{tail}"), line.options.get("work", f"runs/studies{tail}")
    run_studies(line.words, Path(folder), Path(work), quick, minutes, "no-training" not in line.flags)


def export(words: Sequence[str]) -> None:
    """Write a trained policy as one plain model: `phloem export RUN FOLDER`.

    Adapters are merged into the weights they were trained on. RUN is a run folder, or a model's folder within one
    (RUN/best, RUN/checkpoints/step-000020/model).
    """
    if _asks_help(words, export):
        return
    if len(words) != 2:
        raise ConfigError(f"phloem export takes a run folder and a new folder, and was given {len(words)}")
    from pathlib import Path

    from phloem.train.export import export as run_export

    print(run_export(Path(words[0]), Path(words[1])))


@dataclass
class _Line:
    """What follows a command that takes no settings."""

    words: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)


def _read_line(
    command: Callable[[Sequence[str]], None], words: Sequence[str], options: Sequence[str], flags: Sequence[str] = ()
) -> _Line | None:
    """Words, `--option value` and `--flag`; None: help was asked for, and printed."""
    line, rest = _Line(), list(words)
    if "--help" in rest or "-h" in rest:
        _asks_help(["--help"], command)
        return None
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.removeprefix("--").partition("=")
        if not word.startswith("-"):
            line.words.append(word)
        elif word.removeprefix("--") in flags:
            line.flags.add(name)
        elif name not in options or not word.startswith("--"):
            raise ConfigError(f"phloem {command.__name__} takes no {word}")
        elif not (value := value if has_value else rest.pop(0) if rest else ""):
            raise ConfigError(f"--{name} has no value; write --{name} VALUE")
        else:
            line.options[name] = value
    return line


def _asks_help(words: Sequence[str], command: Callable[[Sequence[str]], None]) -> bool:
    """Prints the help of a command if asked for it; refuses any other option."""
    for word in words:
        if word in ("--help", "-h"):
            print(f"usage: phloem {command.__name__}\n\n{textwrap.dedent(f'    {command.__doc__}').strip()}")
            return True
        if word.startswith("-"):
            raise ConfigError(f"phloem {command.__name__} takes no {word}")
    return False


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": train,
    "evaluate": evaluate,
    "compare": compare,
    "doctor": doctor,
    "tasks": tasks,
    "presets": presets,
    "inspect": inspect,
    "export": export,
    "study": study,
}
