"""lambda-GRPO's binary tree: does dividing by |lambda| reach the target more often, and why?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from phloem.config import ModelConfig
from phloem.studies.binary_tree_figures import converged_share, draw, tables
from phloem.studies.figures import RULES as STYLE
from phloem.studies.intervals import wilson
from phloem.studies.study import Bench, Finding, Study, Verdict
from phloem.studies.tree_game import GAMES, RULES, Game, Rule
from phloem.studies.tree_tabular import train_table

__all__ = ["STUDY"]

REFERENCE = {
    (1, 1): ((0.010, 0.008, 0.007), (0.224, 0.188, 0.171), (0.995, 0.994, 0.994)),
    (4, 1): ((0.490, 0.448, 0.407), (0.990, 0.989, 0.989), (0.966, 0.966, 0.969)),
    (16, 1): ((0.558, 0.529, 0.527), (0.978, 0.972, 0.973), (0.822, 0.805, 0.805)),
    (1, 2): ((0.596, 0.462, 0.390), (0.334, 0.306, 0.291), (0.995, 0.995, 0.995)),
    (4, 2): ((0.949, 0.927, 0.943), (0.991, 0.990, 0.990), (0.999, 0.999, 0.999)),
}
"""(lr, n): means of the tabular policy over 300 seeds by a program that shares no code with this one; GRPO,
lambda-GRPO and self-normalised lambda, each for the three r_neg."""

CONVERGED = 0.5
"""A seed has converged if more than this share of its last samples is the target; shares are near 0 or 1."""
SMALL_RATES = (3e-4, 1e-3, 3e-3)
PRETRAINED_RATE = 1e-5


def measure(bench: Bench) -> dict[str, Any]:
    """Every rule on every game at every learning rate, as cells; a piece for each policy and rate."""
    rates, seeds = ((4.0,), 20) if bench.quick else ((1.0, 2.0, 4.0, 8.0, 16.0, 32.0), 300)
    games = GAMES[1::3] if bench.quick else GAMES

    def table(lr: float) -> list[dict[str, Any]]:
        return [_cell(g, r, lr, train_table(g, r, lr, seeds, 100 + i)) for i, (g, r) in enumerate(_pairs(games))]

    many = 20 if bench.quick else 3000
    found: dict[str, Any] = {"table": [], "transformer": [], "pretrained": []}
    found["reference"] = bench.piece("reference", {"seeds": many}, lambda: _against_reference(many, bench.quick))
    for lr in rates:
        found["table"] += bench.piece(f"table-lr{lr:g}", {"seeds": seeds, "games": len(games)}, lambda lr=lr: table(lr))
    from phloem.studies.tree_transformer import train_transformers

    small = 4 if bench.quick else 100
    for lr in SMALL_RATES[:1] if bench.quick else SMALL_RATES:
        for i, (g, r) in enumerate(_pairs(games)):
            name = f"transformer-lr{lr:g}-n{g.n}-{g.r_neg:g}-{r}"
            settings = {"seeds": small, "width": 32, "layers": 2}
            found["transformer"].append(
                bench.piece(
                    name,
                    settings,
                    lambda g=g, r=r, lr=lr, i=i: _cell(g, r, lr, train_transformers(g, r, lr, small, 200 + i)),
                )
            )
    if not bench.quick:
        found["pretrained"] = _pretrained(bench)
    return found


def _against_reference(seeds: int, quick: bool) -> list[dict[str, Any]]:
    """Every cell of REFERENCE (the first of each rate if quick) with its deviation in standard errors."""
    cells = []
    for (lr, n), columns in REFERENCE.items():
        for rule, values in zip(RULES, columns, strict=False):
            for r_neg, value in list(zip((-0.5, -1.0, -1.5), values, strict=True))[: 1 if quick else 3]:
                share_S = train_table(Game(n, r_neg), rule, lr, seeds, int(100 * lr + 10 * n - 7 * r_neg))
                # 300 seeds there, `seeds` here, and the rounding of three digits.
                error = np.sqrt(share_S.var(ddof=1) * (1 / 300 + 1 / seeds) + 0.001**2 / 12)
                z = (share_S.mean() - value) / error
                cells.append({**_cell(Game(n, r_neg), rule, lr, share_S), "reference": value, "z": float(z)})
    return cells


def _pretrained(bench: Bench) -> list[dict[str, Any]]:
    """Single seeds of the pretrained model while there is time; what there is none for is left out."""
    runs = []
    loaded: list[Any] = []
    for seed in range(5):
        for game in (GAMES[1], GAMES[4]):
            for rule in ("grpo", "lambda-grpo"):

                def one(game: Game = game, rule: Rule = rule, seed: int = seed) -> float:
                    from phloem.models import load_model
                    from phloem.studies.tree_pretrained import train_pretrained

                    if not loaded:
                        loaded.append(load_model(ModelConfig()))
                    model, tokenizer = loaded[0]
                    return train_pretrained(model, tokenizer, game, rule, PRETRAINED_RATE, seed)

                name = f"pretrained-n{game.n}-{game.r_neg:g}-{rule}-seed{seed}"
                share = bench.optional_piece(name, {"lr": PRETRAINED_RATE}, one)
                if share is not None:
                    runs.append({"n": game.n, "r_neg": game.r_neg, "rule": rule, "share": share})
    cells = []
    for game, rule in _pairs(GAMES):
        shares = [r["share"] for r in runs if (r["n"], r["r_neg"], r["rule"]) == (game.n, game.r_neg, rule)]
        if shares:
            cells.append(_cell(game, rule, PRETRAINED_RATE, np.array(shares)))
    return cells


def _pairs(games: Iterable[Game]) -> list[tuple[Game, Rule]]:
    return [(game, rule) for game in games for rule in RULES]


def _cell(game: Game, rule: Rule, lr: float, share_S: np.ndarray) -> dict[str, Any]:
    n = len(share_S)
    return {
        "lr": lr,
        "n": game.n,
        "r_neg": game.r_neg,
        "rule": rule,
        "seeds": n,
        "mean": float(share_S.mean()),
        "standard_error": float(share_S.std(ddof=1) / np.sqrt(n)) if n > 1 else None,
        "converged": int((share_S > CONVERGED).sum()),
        "between": int(((share_S > 0.1) & (share_S < 0.9)).sum()),
    }


# --------------------------------------------------------------------------------------------------- verdicts


def judge(measured: Mapping[str, Any]) -> list[Finding]:
    table, small, large = (measured[part] for part in ("table", "transformer", "pretrained"))
    return [
        _reproduced(measured["reference"]),
        _more_often(table, "table", "tabular policy, plain gradient steps"),
        _more_often(small, "transformer", "small transformer, Adam"),
        _best_rates(table, "tabular policy"),
        _best_rates(small, "small transformer"),
        _control(table, small),
        _normalised(table),
        _pretrained_finding(large),
    ]


def _reproduced(cells: list[dict[str, Any]]) -> Finding:
    z = np.array([c["z"] for c in cells])
    far = [
        f"lr {c['lr']:g}, n {c['n']}, r_neg {c['r_neg']:g}, {STYLE[c['rule']][2]}: {c['mean']:.3f} against "
        f"{c['reference']:.3f} ({abs(c['z']):.1f} standard errors)"
        for c in cells
        if abs(c["z"]) > 3
    ]
    spread = float(np.sqrt((z**2).mean()))
    agrees = len(far) <= len(cells) / 45 and spread < 1.5
    outside = f"outside: {'; '.join(far)}. " if far else ""
    return Finding(
        claim="the tabular figures agree with an independent calculation within three standard errors",
        published="45 cells of 300 seeds",
        ours=f"{len(cells) - len(far)} of {len(cells)} cells ({cells[0]['seeds']:,} seeds); root mean square of the "
        f"deviations {spread:.2f} standard errors",
        verdict=Verdict.CONFIRMED if agrees else Verdict.NOT_CONFIRMED,
        note=f"{outside}The standard error of the 300 seeds there is taken from the spread of our seeds. Confirmed "
        "means at most one cell of 45 outside.",
    )


def _games_won(cells: list[dict[str, Any]], first: str, second: str, lr: float) -> tuple[int, int, int]:
    """Games in which `second` converges more often, less often (intervals apart), and all games, at one rate."""
    won = lost = total = 0
    for a in [c for c in cells if c["rule"] == first and c["lr"] == lr]:
        b = next(c for c in cells if (c["rule"], c["lr"], c["n"], c["r_neg"]) == (second, lr, a["n"], a["r_neg"]))
        one, two = (wilson(c["converged"], c["seeds"]) for c in (a, b))
        won, lost, total = won + (two.low > one.high), lost + (two.high < one.low), total + 1
    return won, lost, total


def _more_often(cells: list[dict[str, Any]], part: str, name: str) -> Finding:
    rates = sorted({c["lr"] for c in cells})
    scores = {lr: _games_won(cells, "grpo", "lambda-grpo", lr) for lr in rates}
    won, lost = (sum(s[i] for s in scores.values()) for i in (0, 1))
    total = sum(s[2] for s in scores.values())
    parts = "; ".join(f"lr {lr:g}: {s[0]} more, {s[1]} less of {s[2]}" for lr, s in scores.items())
    verdict = Verdict.CONFIRMED if won > total / 2 else Verdict.NOT_CONFIRMED
    return Finding(
        claim=f"lambda-GRPO reaches the target more often than GRPO at most equal learning rates ({name})",
        published="6 of 6 games, mean share .14 against .49",
        ours=f"more often in {won} and less often in {lost} of {total} (game, rate) pairs",
        verdict=verdict,
        note=f"games whose shares of converged seeds have intervals apart, {part}: {parts}.",
    )


def _best_rates(cells: list[dict[str, Any]], name: str) -> Finding:
    rates = sorted({c["lr"] for c in cells})
    best = {rule: max(rates, key=lambda lr: converged_share(cells, rule, lr).value) for rule in RULES}
    grpo, lam = (converged_share(cells, rule, best[rule]) for rule in ("grpo", "lambda-grpo"))
    return Finding(
        claim=f"lambda-GRPO stays ahead when each rule has its own best learning rate ({name})",
        published="- (one rate)",
        ours=f"GRPO {grpo.value:.3f} [{grpo.low:.3f}, {grpo.high:.3f}] at {best['grpo']:g}, lambda-GRPO "
        f"{lam.value:.3f} [{lam.low:.3f}, {lam.high:.3f}] at {best['lambda-grpo']:g}",
        verdict=Verdict.CONFIRMED if lam.low > grpo.high else Verdict.NOT_CONFIRMED,
        note="shares of converged seeds over all games. The best of a few rates is picked on the same seeds, for both "
        "rules alike.",
    )


def _control(table: list[dict[str, Any]], small: list[dict[str, Any]]) -> Finding:
    lines, ahead = [], []
    for name, cells in (("tabular", table), ("transformer", small)):
        for lr in sorted({c["lr"] for c in cells}):
            won, lost, total = _games_won(cells, "grpo-scaled", "lambda-grpo", lr)
            ahead.append(won - lost)
            lines.append(f"{name} lr {lr:g}: {won} more, {lost} less of {total}")
    return Finding(
        claim="the gain is not that of a smaller step: lambda-GRPO beats GRPO at lr x U/Z",
        published="- (no control)",
        ours=f"ahead at {sum(a > 0 for a in ahead)}, behind at {sum(a < 0 for a in ahead)} of {len(ahead)} rates",
        verdict=Verdict.CONFIRMED if sum(a > 0 for a in ahead) > len(ahead) / 2 else Verdict.NOT_CONFIRMED,
        note="; ".join(lines) + ". A smaller step alone makes GRPO worse where steps are too small, better where "
        "they are too large.",
    )


def _normalised(table: list[dict[str, Any]]) -> Finding:
    rates = sorted({c["lr"] for c in table})
    shares = {
        lr: (converged_share(table, "lambda-grpo", lr), converged_share(table, "lambda-grpo-sn", lr)) for lr in rates
    }
    better = [lr for lr, (lam, own) in shares.items() if own.low > lam.high]
    worse = [lr for lr, (lam, own) in shares.items() if own.high < lam.low]
    return Finding(
        claim="dividing by the weights' own sum (U) makes up for the shrunk step of lambda-GRPO",
        published="- (not tested)",
        ours=f"better than lambda-GRPO at lr {_listed(better)}, worse at {_listed(worse)} (tabular)",
        verdict=Verdict.CONFIRMED if better and not worse else Verdict.NOT_CONFIRMED,
        note="self-normalised steps are longer: they win where lambda-GRPO's are too short to arrive in 250 steps, and "
        "overshoot where those are long enough.",
    )


def _listed(rates: list[float]) -> str:
    return ", ".join(f"{lr:g}" for lr in rates) or "none"


def _pretrained_finding(cells: list[dict[str, Any]]) -> Finding:
    shown = [
        f"n {c['n']}, r_neg {c['r_neg']:g}, {STYLE[c['rule']][2]}: {c['converged']} of {c['seeds']} converged, mean "
        f"share {c['mean']:.3f}"
        for c in cells
    ]
    few = not cells or min(c["seeds"] for c in cells) < 5
    return Finding(
        claim="a pretrained language model does the same (SmolLM2-135M here, GPT-2-small there)",
        published="see the table",
        ours="; ".join(shown) or "-",
        verdict=Verdict.NOT_RUN if not cells else Verdict.UNDECIDED,
        note="outcomes of a seed are all or nothing, so a handful of seeds decides nothing." if few else "",
        recipe="phloem study binary-tree    # 20 runs of the pretrained model, several minutes each on one core",
    )


STUDY = Study(
    name="binary-tree",
    title="The binary tree",
    question="""
A policy turns left or right four times. The target leaf pays 1; every other leaf that shares its first n turns pays
r_neg; all others pay .7. GRPO pushes the shared turns down as often as rollouts pass through them, so it learns to stay
away from the target; lambda-GRPO counts each turn once and is said to arrive (arXiv 2509.21154: GPT-2-small, 16
rollouts a step, 250 steps, 5 seeds). Here: three policies, all six (n, r_neg), hundreds of seeds, and two controls the
paper lacks: lambda-GRPO divided by the sum of its own weights, and GRPO with its learning rate scaled by U/Z, the
factor by which lambda's weights shrink an update.
""",
    departures="""
- Policies: a table (one logit a node, plain gradient steps), a transformer from scratch (2 layers, width 32, Adam), and
  SmolLM2-135M-Instruct with frozen embeddings (Adam 1e-5) in the place of GPT-2-small. The paper names no optimiser.
- A seed draws its own target, policy and rollouts. It has converged if more than half of its samples of the last 50
  steps are the target.
""",
    budget="About 15 minutes on one core for the table and the transformers, then about two hours for 20 runs of the "
    "pretrained model; every cell is kept.",
    measure=measure,
    judge=judge,
    draw=draw,
    tables=tables,
)
