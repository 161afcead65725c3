"""Writes docs/presets/ from the presets themselves: `python docs/write_presets.py`. A test compares the two."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phloem import credit, presets
from phloem.presets import PRESETS, Preset
from phloem.tree import Group, Segment

FOLDER = Path(__file__).parent / "presets"
LIMIT = 10

INDEX = """# Rules

A rule says what is credited, against what, divided by what, and how often a token counts that several branches share.
These are the named ones; any of their fields can be replaced (`--credit.baseline siblings`), and any rule runs on any
tree. `phloem presets` prints this table.

{table}

Fields, and what each choice means: `phloem.presets.Rule`. The weights behind the normalisers: `phloem.credit.weights`.
"""

PAGE = """# {name}

{note}

- Source: {paper}.
- Equation: `{equation}`.
- Fields: {fields}.

## Hand numbers

One prompt, two thoughts of two tokens, two answers of one token to each, rewards [1, 0 | 0, 0]; the group is the whole
step, eps is {eps:g}{limit}. Z = 12 sampled tokens counted once per rollout, U = 8 distinct ones.

{branches}

Credit of one token of each segment, c = c_pos + c_neg, the factor of grad log pi at the first update:

{tokens}
"""

ABOUT = {
    "rollout": "Each rollout credits its whole path, so the branches are the four rollouts:",
    "segment": "Each segment credits its own tokens, so the branches are two thoughts and four answers:",
}


def example(unit: str) -> Group:
    """Two thoughts, two answers to each, no accidental overlap; for rollout rules the same rows without the forks."""
    thoughts, rewards = [[1, 2], [3, 4]], [1.0, 0.0, 0.0, 0.0]
    if unit == "rollout":
        return Group.from_rollouts([0], [thoughts[r // 2] + [5 + r] for r in range(4)], rewards)
    segments = [Segment(np.array(t)) for t in thoughts]
    segments += [Segment(np.array([5 + r]), parent=r // 2, reward=rewards[r]) for r in range(4)]
    return Group(np.array([0]), tuple(segments))


def page(preset: Preset) -> str:
    """The text of one preset's page."""
    rule = preset.rule
    if rule.normaliser == "constant":
        rule = presets.get(preset.name, max_completion_tokens=LIMIT)
    assigned = credit.assign(example(rule.unit), rule)
    names = ["rollout 1", "rollout 2", "rollout 3", "rollout 4"]
    if rule.unit == "segment":
        names = ["thought 1", "thought 2", "answer 1.1", "answer 1.2", "answer 2.1", "answer 2.2"]
    rows = ["| branch | value | baseline | divided by | advantage | w_b |", "|---|---|---|---|---|---|"]
    for b, name in enumerate(names):
        figures = (assigned.branches.value_B, assigned.baseline_B, assigned.divisor_B, assigned.advantage_B)
        cells = [f"{array[b]:.4f}" for array in figures] + [f"{assigned.weight_B[b]:.5f}"]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")

    tree, total_T = assigned.tree, assigned.c_pos_T + assigned.c_neg_T
    first = {"thought 1": (0, 0), "thought 2": (2, 0)} | {f"answer {r // 2 + 1}.{r % 2 + 1}": (r, 2) for r in range(4)}
    tokens = ["| token of | count | c_pos | c_neg | c |", "|---|---|---|---|---|"]
    for name, (rollout, depth) in first.items():
        at = tree.row(rollout)[depth]
        entries = assigned.branches.entry_token_E == at
        count = int(np.count_nonzero(entries))
        figures = (assigned.c_pos_T[at], assigned.c_neg_T[at], total_T[at])
        tokens.append(f"| {name} | {count} | " + " | ".join(f"{x:+.5f}" for x in figures) + " |")
    return PAGE.format(
        name=preset.name,
        note=preset.note,
        paper=preset.paper,
        equation=preset.equation,
        fields=_fields(preset),
        eps=rule.eps,
        limit=f", max_completion_tokens {LIMIT}" if rule.normaliser == "constant" else "",
        branches=f"{ABOUT[rule.unit]}\n\n" + "\n".join(rows),
        tokens="\n".join(tokens),
    )


def index() -> str:
    """The text of docs/presets/index.md."""
    head = [
        "| preset | unit | baseline | scale | share / kl_share | normaliser | clip |",
        "|---|---|---|---|---|---|---|",
    ]
    for preset in PRESETS.values():
        r = preset.rule
        cells = [r.unit, r.baseline, r.scale, f"{r.share} / {r.kl_share}", r.normaliser, _clip(preset)]
        head.append(f"| [{preset.name}]({preset.name}.md) | " + " | ".join(cells) + " |")
    return INDEX.format(table="\n".join(head))


def _clip(preset: Preset) -> str:
    rule = preset.rule
    return "none" if rule.clip_low is None else f"{rule.clip_low:g} / {rule.clip_high:g}"


def _fields(preset: Preset) -> str:
    r = preset.rule
    named = {
        "unit": r.unit,
        "baseline": r.baseline,
        "scale": r.scale,
        "ddof": r.ddof,
        "share": r.share,
        "kl_share": r.kl_share,
        "normaliser": r.normaliser,
        "clip": _clip(preset),
    }
    return ", ".join(f"{name} `{value}`" for name, value in named.items())


def pages() -> dict[str, str]:
    """File name to text, for every page of the folder."""
    return {"index.md": index()} | {f"{name}.md": page(preset) for name, preset in PRESETS.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
