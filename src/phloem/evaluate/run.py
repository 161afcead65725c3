"""An evaluation, from settings to a report: problems, samples, verdicts, figures.

It can be stopped at any moment. What was judged is on disk, line by line, and the same command goes on after it; the
report is the one that an evaluation left alone would have written.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from phloem.config import EvaluateConfig
from phloem.evaluate import predictions as store
from phloem.evaluate.benchmarks import Problems, load
from phloem.evaluate.held_out import HeldOut
from phloem.evaluate.identity import IDENTITY, changes, digest_of, identity, read_identity
from phloem.evaluate.predictions import Prediction, Sample
from phloem.evaluate.report import report_of, write_reports
from phloem.evaluate.statistics import Figures
from phloem.evaluate.vote import same_maths
from phloem.files import replace_text, writing
from phloem.kinds import ConfigError, PhloemError
from phloem.rewards import get as get_reward
from phloem.rewards import score_all
from phloem.settings import to_yaml
from phloem.tasks.task import Example

if TYPE_CHECKING:
    from phloem.evaluate.subject import Subject

__all__ = ["Evaluation", "evaluate", "figures_of"]

PREDICTIONS = "predictions.jsonl"
WRITTEN = ("config.yaml", PREDICTIONS, "report.json", "report.md", "report.html")
"""Files of an evaluation, beside the one that says it is one."""
_BATCHES = 2
"""Batches of `sample.max_rows` rows between two writes: rows that end early are replaced by the second's."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation leaves behind.

    Attributes:
        folder: with config.yaml, identity.json, predictions.jsonl, report.json, report.md and report.html.
        report: the content of report.json.
        held_out: rewards by benchmark, problem and sample.
    """

    folder: Path
    report: dict[str, Any]
    held_out: dict[str, HeldOut]


def evaluate(config: EvaluateConfig, say: Say | None = None) -> Evaluation:
    """Samples a model on benchmarks, judges every completion and writes the report.

    Args:
        config: the settings.
        say: is given a line at a time of what happens; None: nobody is told.

    Raises:
        ConfigError: settings that cannot be honoured, or that differ from those of the evaluation in the folder.
        PhloemError: problems, a model or a folder that cannot be used.
    """
    from phloem.evaluate.subject import (  # loads torch, which reading and comparing evaluations do without
        Subject,
        check_engine,
    )

    say = say or (lambda line: None)
    _set_up_process(config)
    problems = [load(name, config.data, config.limit, config.prompt.template) for name in config.benchmarks]
    check_engine(config.sample.as_sample_config())
    graders = {part.benchmark.grader for part in problems}
    if "code" in graders:
        from phloem.rewards import sandbox

        sandbox.require()
    if config.folder is not None:
        _make_folder(Path(config.folder))
        _require_same(Path(config.folder), lambda before: identity(config, problems, before["model.fingerprint"]))
    subject = Subject.load(config)
    for part in problems:
        subject.require_room(part.examples, part.benchmark.title)
    table = identity(config, problems, subject.fingerprint)
    folder = Path(config.folder or f"evaluations/{Path(config.model.path).name}-{digest_of(table)}")
    _make_folder(folder)
    say(f"{config.model.path}: {subject.parameters:,} parameters, fingerprint {subject.fingerprint}; folder {folder}")
    try:
        with FileLock(folder / ".lock", timeout=0):
            _settle(folder, config, table)
            for part in problems:
                _predict(part, subject, folder / PREDICTIONS, digest_of(table), say)
            return _report(folder, config, problems, subject, table, say)
    except Timeout:
        raise ConfigError(f"another evaluation is writing in {folder}: wait for it, or set another folder") from None


def _set_up_process(config: EvaluateConfig) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # graders fork; the tokenizer would warn of it
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    if config.threads:
        torch.set_num_threads(config.threads)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"folder {folder} cannot be written ({error}); name another one") from None


def _settle(folder: Path, config: EvaluateConfig, table: dict[str, Any]) -> None:
    """Makes the folder this evaluation's, or makes sure that it is."""
    if not _require_same(folder, lambda before: table):
        _write(folder / IDENTITY, json.dumps(table, indent=2, ensure_ascii=False) + "\n")
    _write(folder / "config.yaml", to_yaml(config))
    store.repair(folder / PREDICTIONS)


def _require_same(folder: Path, now: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
    """Whether an evaluation has begun in the folder.

    Raises ConfigError naming every setting in which it differs from `now`, which is given what the folder holds; or
    naming files of something else (a run) that an evaluation would write over.
    """
    if not (folder / IDENTITY).exists():
        if taken := [name for name in WRITTEN if (folder / name).exists()]:
            raise ConfigError(
                f"folder {folder} holds {', '.join(taken)}, which an evaluation writes, and no {IDENTITY} to go with "
                "it; name a new or empty folder"
            )
        return False
    before = read_identity(folder)
    if found := list(changes(before, now(before))):
        raise ConfigError(
            f"{folder} holds an evaluation under other settings: {'; '.join(found)}. Set these back, or name another "
            "folder"
        )
    return True


def _write(path: Path, text: str) -> None:
    with writing(path, "folder"):
        replace_text(path, text)


def _predict(part: Problems, subject: Subject, path: Path, fingerprint: str, say: Say) -> None:
    """Samples and judges the problems that have no prediction yet.

    Problems are taken in the same groups whether or not an evaluation was stopped on the way, since what is decoded
    together decides how sums are rounded.
    """
    name, draw = part.benchmark.name, subject.config.sample
    done = {p.id for p in _own(path, fingerprint, draw.n) if p.benchmark == name} if path.exists() else set[str]()
    if done:
        say(f"{name}: {len(done)} of {len(part.examples)} problems are there already")
    size = max(1, _BATCHES * draw.max_rows // draw.n)
    for start in range(0, len(part.examples), size):
        examples = part.examples[start : start + size]
        if all(e.id in done for e in examples):
            continue
        made = _judged(part, subject, examples, start, fingerprint)
        store.append(path, (p for p in made if p.id not in done))
        rewards = [s.reward for p in made for s in p.samples if s.reward is not None]
        mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else "none scored"
        say(f"{name}: {start + len(examples)} of {len(part.examples)} problems (mean of the last ones {mean})")


def _judged(
    part: Problems, subject: Subject, examples: Sequence[Example], start: int, fingerprint: str
) -> list[Prediction]:
    prompts = [subject.prompt_ids(str(e.prompt)) for e in examples]
    # A sample's random numbers depend on the seed, the benchmark, the problem's place in it and the sample's number.
    keys = [(zlib.crc32(part.benchmark.name.encode()), start + i) for i in range(len(examples))]
    groups = subject.sample(prompts, keys)
    leaves = [(e, g, g.segments[leaf]) for e, g in zip(examples, groups, strict=True) for leaf in g.leaves]
    texts = [subject.text(segment.tokens) for _, _, segment in leaves]
    verdicts = score_all(
        get_reward(part.benchmark.grader), texts, [e.answer for e, _, _ in leaves], [e.row for e, _, _ in leaves]
    )
    samples = iter(
        Sample.of(text, len(segment.tokens), segment.finish, verdict)
        for text, (_, _, segment), verdict in zip(texts, leaves, verdicts, strict=True)
    )
    return [
        Prediction(
            fingerprint=fingerprint,
            benchmark=part.benchmark.name,
            id=example.id,
            prompt=subject.shown(prompt),
            prompt_tokens=len(prompt),
            answer=example.answer,
            samples=tuple(next(samples) for _ in group.leaves),
        )
        for example, prompt, group in zip(examples, prompts, groups, strict=True)
    ]


def _own(path: Path, fingerprint: str, samples: int) -> list[Prediction]:
    """The predictions of a file. Raises PhloemError: one is of another evaluation, or is not whole."""
    found = store.read(path)
    for number, p in enumerate(found, start=1):
        if p.fingerprint != fingerprint or len(p.samples) != samples:
            raise PhloemError(
                f"{path} line {number}, of {p.benchmark} {p.id}, is not this evaluation's: it has the fingerprint "
                f"{p.fingerprint} and {len(p.samples)} samples, and {fingerprint} and {samples} are wanted; remove the "
                "line, and its problem is sampled again"
            )
    return found


def figures_of(predictions: Sequence[Prediction], grader: str) -> Figures:
    """The figures of one benchmark's predictions, as its grader compares answers."""
    return Figures(predictions, same_maths if grader == "math" else None)


def _report(
    folder: Path,
    config: EvaluateConfig,
    problems: Sequence[Problems],
    subject: Subject,
    table: dict[str, Any],
    say: Say,
) -> Evaluation:
    made = _own(folder / PREDICTIONS, digest_of(table), config.sample.n)
    figures: dict[str, Figures] = {}
    prompts: dict[str, str] = {}
    for part in problems:
        benchmark = part.benchmark
        own = {p.id: p for p in made if p.benchmark == benchmark.name}
        figures[benchmark.name] = figures_of([own[e.id] for e in part.examples], benchmark.grader)
        wording = config.prompt.template or benchmark.template
        prompts[benchmark.name] = subject.shown(subject.prompt_ids(wording))
    report = report_of(config, problems, figures, prompts, table, subject.parameters)
    for name, text in write_reports(report).items():
        _write(folder / name, text)
    say(f"report in {folder / 'report.html'}, report.md and report.json")
    return Evaluation(folder, report, {name: f.held_out for name, f in figures.items()})
