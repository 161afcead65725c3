"""Scores the predictions of `phloem evaluate` once more, with the graders of lm-evaluation-harness.

    python benchmarks/second_grader.py RUN [RUN ...] [--json FILE]

RUN is the folder of an evaluation. It needs an environment of its own, without Phloem: the maths tasks of lm-eval pin
another antlr: `pip install "lm-eval[math]"`. Two graders of lm-eval 0.4 see the same completions:

- `minerva_math`, metric math_verify: math-verify finds an answer in the whole completion and compares symbolically;
- `aime`, metric exact_match: the last \\boxed{}, else what stands between the first and the last $, as strings after
  normalisation. (It knows one spelling of an answer, so it is expected to refuse some right ones.)

Printed are agreement by benchmark and grader, and every disagreement with math-verify with its reason; the JSON has the
same without any text of a problem or a completion. Samples that were not scored (unusable gold answers) are left out
and counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

try:
    from lm_eval.tasks.aime.utils import process_results as aime
    from lm_eval.tasks.minerva_math.utils import normalize_final_answer
    from lm_eval.tasks.minerva_math.utils import process_results as minerva
    from math_verify import parse
except (ImportError, AssertionError) as error:
    sys.exit(f'second_grader: {error}\nIt needs an environment of its own: pip install "lm-eval[math]"')

MATHS = ("aime24", "math500", "amc23", "minerva", "olympiadbench", "gsm8k")
GRADERS = ("math_verify", "exact_match")


def samples(folder: Path) -> Iterator[tuple[dict[str, Any], int, dict[str, Any]]]:
    """(problem's line, number of the sample, sample) of every maths completion of an evaluation."""
    for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines():
        problem = json.loads(line)
        if problem["benchmark"] in MATHS:
            for number, sample in enumerate(problem["samples"]):
                yield problem, number, sample


def judge(text: str, gold: str) -> dict[str, bool]:
    """Right or wrong by each of the two graders."""
    document = {"answer": normalize_final_answer(gold), "solution": f"\\boxed{{{gold}}}"}
    return {
        "math_verify": bool(minerva(document, [text])["math_verify"]),
        "exact_match": bool(aime({"answer": gold}, [text])["exact_match"]),
    }


def reason(sample: dict[str, Any]) -> str:
    """Why Phloem and math-verify disagree: over where the answer is, or over whether it equals the gold answer."""
    text, extracted = sample["text"], sample["extracted"]
    read = parse(text)
    theirs = str(read[-1]).strip() if read else None
    boxes = text.count("\\boxed")
    where = f"{boxes} boxes" if boxes > 1 else "one box" if boxes else "no box"
    if sample["finish"] == "length":
        where += ", cut at the cap"
    if extracted is None:
        return f"{where}; Phloem finds no final answer ({sample['detail']}), the other takes one from the text"
    if theirs is None:
        return f"{where}; the other reads nothing"
    if squeezed(theirs) == squeezed(extracted):
        return f"{where}; both read the same answer and differ on whether it equals the gold answer"
    return f"{where}; they read different answers (Phloem: {sample['detail'].partition(';')[0]})"


def squeezed(text: str) -> str:
    return "".join(text.split()).strip("$.")


def compare(folders: list[Path]) -> dict[str, Any]:
    """Counts by benchmark and the disagreements, ready for JSON."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    disagreements: list[dict[str, Any]] = []
    unscored: Counter[str] = Counter()
    for folder in folders:
        for problem, number, sample in samples(folder):
            benchmark = problem["benchmark"]
            if sample["reward"] is None:
                unscored[benchmark] += 1
                continue
            ours, theirs = sample["status"] == "right", judge(sample["text"], problem["answer"])
            for grader in GRADERS:
                own = counts.setdefault(benchmark, {}).setdefault(grader, Counter())
                own[f"{'right' if ours else 'wrong'}/{'right' if theirs[grader] else 'wrong'}"] += 1
            if ours != theirs["math_verify"]:
                place = {"run": folder.name, "benchmark": benchmark, "id": problem["id"], "sample": number}
                verdicts = {"phloem": sample["status"], **theirs}
                disagreements.append({**place, **verdicts, "why": reason(sample)})
                print(f"{folder.name} {benchmark} {problem['id']} sample {number}: {verdicts}\n  {reason(sample)}")
                print(
                    f"  gold {problem['answer']!r}, Phloem reads {sample['extracted']!r}, other {parse(sample['text'])}"
                )
    return {
        "phloem/other": {name: {g: dict(sorted(c.items())) for g, c in own.items()} for name, own in counts.items()},
        "not scored": dict(unscored),
        "disagreements with math_verify": disagreements,
        "versions": {name: version(name) for name in ("lm-eval", "math-verify", "sympy")},
    }


def agreement(counts: dict[str, int]) -> str:
    total, same = sum(counts.values()), counts.get("right/right", 0) + counts.get("wrong/wrong", 0)
    parts = ", ".join(f"{number} {name}" for name, number in counts.items())
    return f"{same} of {total} agree ({parts})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of evaluations")
    parser.add_argument("--json", type=Path, help="write the counts and disagreements here")
    options = parser.parse_args()
    found = compare(options.runs)
    for benchmark, graders in found["phloem/other"].items():
        for grader, counts in graders.items():
            print(f"{benchmark}, {grader}: {agreement(counts)}")
    print(f"not scored: {found['not scored'] or 'none'}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
