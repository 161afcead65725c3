"""Commands that judge models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path

from phloem.cli.line import read_line, read_settings
from phloem.config import EvaluateConfig
from phloem.kinds import ConfigError
from phloem.settings import resolve, to_yaml

__all__ = ["compare", "evaluate"]


def evaluate(words: Sequence[str]) -> None:
    """Judge a model on public benchmarks.

    Options:
      --config FILE       settings from a YAML file; may be given several times, the later file wins
      --print_config      print the resolved settings as YAML and stop
      --SETTING VALUE     any setting below; beats every file

    Benchmarks: aime24, math500, amc23, minerva, olympiadbench, gsm8k, humaneval, mbpp.
    Given again, the command goes on where it was stopped. `phloem compare` sets two evaluations side by side.
    """
    line = read_settings("evaluate", words, flags=("print_config",))
    config = resolve(line.take("config"), line.pairs, EvaluateConfig)
    if "print_config" in line.flags:
        print(to_yaml(config), end="")
        return
    from phloem.evaluate import evaluate as run_evaluation

    done = run_evaluation(config, say=lambda text: print(text, flush=True))
    for found in done.report["benchmarks"].values():
        print(f"{found['title']:<14} {_figures(found['mean'])}, {found['clipped_share']:.1%} clipped")


def _figures(mean: Mapping[str, float]) -> str:
    """A mean with its error and interval; one problem alone has no error."""
    if isnan(mean["value"]):
        return "no sample was scored"
    error = "" if isnan(mean["standard_error"]) else f" ± {mean['standard_error']:.3f}"
    return f"{mean['value']:.3f}{error} [{mean['low']:.3f}, {mean['high']:.3f}]"


def compare(words: Sequence[str]) -> None:
    """Compare two evaluations, paired by problem: `phloem compare FIRST SECOND [--json FILE]`.

    The gain of the second over the first has a bootstrap interval over problems. Evaluations of other problems, or
    under other settings, wordings or graders, are refused, and what differs is named.
    """
    line = read_line("compare", words, options=("json",))
    if len(line.words) != 2:
        raise ConfigError(f"phloem compare takes two evaluation folders, and was given {len(line.words)}")
    from phloem.evaluate import compare as compare_folders

    comparison = compare_folders(*line.words)
    print(comparison)
    out = line.option("json")
    if out is not None:
        try:
            Path(out).write_text(comparison.to_json(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {out} cannot be written ({error.strerror})") from None
