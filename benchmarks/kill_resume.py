"""Kill -9 at random moments, saves included: every resume works, and the end is that of a run left alone, bit for bit.

    python benchmarks/kill_resume.py [--kills 20] [--processes 1] [--steps 240] [--seed 0] [--out FILE]

A tiny random model learns from a reward on letters, with a checkpoint after every step, an evaluation every four and a
KL reference. One run is left alone. Another is killed with everything it started: half of the time after a random
delay (around the time that the first run took to its first checkpoint), half of the time as soon as a checkpoint is
being written (plus up to 20 ms). It is resumed until it is done; weights, optimiser, rollouts and metrics (times apart)
must then be the same bytes. With two processes the kill takes one of them every other time, and the launcher ends the
other. A run that is done before it was killed so many times shows less than was asked for, and counts as a failure: it
needs more steps.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep, time

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # the tiny model and tokenizer are those of the tests

CONFIG = """
task: {{name: data, held_out_size: 4, args: {{path: {folder}/rows.jsonl, reward: "{folder}/reward.py:letters"}}}}
model: {{path: {folder}/model}}
sample: {{thoughts: 2, answers: 2, thought_tokens: 6, answer_tokens: 4}}
credit: {{preset: grpo-ma, beta: 0.05}}
optim: {{steps: {steps}, prompts_per_step: 2, lr: 0.001, schedule: linear, warmup_steps: 2}}
evaluation: {{prompts: 2, samples: 2, every: 4, prompts_between: 2}}
run: {{view: plain, checkpoint_every: 1, keep_checkpoints: 1, threads: 1}}
alarms: {{kl: null, zero_spread: null}}
"""
REWARD = "def letters(completion, answer, row):\n    return float(len(set(completion)))\n"
PATIENCE = 180.0
"""Seconds without an end or a save after which a run that is to be killed is taken to hang."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        result = trial(Path(place), wanted.kills, wanted.processes, wanted.steps, random.Random(wanted.seed))
    print(json.dumps(result, indent=2))
    if wanted.out:
        wanted.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if result["kills"] != wanted.kills:
        sys.exit(f"kill_resume: the run was done after {result['kills']} of {wanted.kills} kills; raise --steps")
    sys.exit(0 if result["same"] else 1)


def trial(place: Path, kills: int, processes: int, steps: int, draw: random.Random) -> dict[str, object]:
    """Both runs, and how they compare."""
    prepare(place, steps)
    alone, killed = place / "alone", place / "killed"
    begun = monotonic()
    run = start(["--config", str(place / "config.yaml"), "--run.folder", str(alone)], processes, place / "log")
    while run.poll() is None and not any(alone.glob("checkpoints/step-*")):
        sleep(0.01)
    first_save = monotonic() - begun
    finish(run)
    seconds = monotonic() - begun
    delays = 0.5 * first_save, first_save + 1.5 * (seconds - first_save) / kills
    moments: Counter[str] = Counter()
    lives = 0
    while not (killed / "summary.json").exists():
        new = not (killed / "config.yaml").exists()
        words = ["--config", str(place / "config.yaml"), "--run.folder", str(killed)]
        run = start(words if new else ["--resume", str(killed)], processes, place / "log")
        lives += 1
        if moments.total() < kills:
            moment = kill(run, killed, draw, delays, alternate=processes > 1 and lives % 2 == 0)
            moments[moment] += moment != "finished first"
        else:
            finish(run)
    return {
        "processes": processes,
        "kills": moments.total(),
        "killed": dict(moments),
        "lives": lives,
        "steps": steps,
        "same": same(alone, killed),
        "seconds_alone": round(seconds, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def prepare(place: Path, steps: int) -> None:
    """Model, data, reward and settings."""
    from tiny_models import save_tiny_model

    save_tiny_model(place / "model")
    rows = (json.dumps({"prompt": f"{n}?", "answer": str(n)}) for n in range(12))
    (place / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (place / "reward.py").write_text(REWARD, encoding="utf-8")
    (place / "config.yaml").write_text(CONFIG.format(folder=place, steps=steps), encoding="utf-8")


def start(words: list[str], processes: int, log: Path) -> subprocess.Popen[bytes]:
    launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--standalone"]
    command = [sys.executable, *(launcher if processes > 1 else []), "-m", "phloem", "train", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment)


def finish(run: subprocess.Popen[bytes]) -> None:
    """Raises RuntimeError: a run that was let alone did not end well."""
    if run.wait(timeout=600) != 0:
        raise RuntimeError(f"{run.args} ended with {run.returncode}")


def kill(
    run: subprocess.Popen[bytes], folder: Path, draw: random.Random, delays: tuple[float, float], alternate: bool
) -> str:
    """Kills a run at a random moment and returns what it was doing: `saving`, `training` or `starting`."""
    from short_runs import is_saving

    in_save = draw.random() < 0.5
    begun, since, before = monotonic(), time(), set(folder.glob("checkpoints/step-*"))
    wait = draw.uniform(*delays)
    while run.poll() is None:
        if is_saving(folder, since) if in_save else monotonic() - begun > wait:
            break
        sleep(0.0005)
        if monotonic() - begun > PATIENCE:
            raise RuntimeError(f"{run.args} neither saved nor ended in {PATIENCE:.0f} s")
    if run.poll() is not None:
        if run.returncode != 0:
            raise RuntimeError(f"{run.args} ended with {run.returncode} by itself")
        return "finished first"
    if in_save:
        sleep(draw.uniform(0.0, 0.02))
    saving = is_saving(folder, since)
    begun_training = bool(set(folder.glob("checkpoints/step-*")) - before)
    victims = list(tree_of(run.pid))
    if alternate:
        victims = [v for v in victims if "torch.distributed.run" not in v.cmdline()][-1:]
    for victim in victims:
        victim.kill()
    run.wait(timeout=120)
    for victim in victims:
        victim.wait(timeout=60)
    if (folder / "summary.json").exists():
        return "finished first"
    return "saving" if saving else "training" if begun_training else "starting"


def tree_of(pid: int) -> Iterator[psutil.Process]:
    """A process and what it started."""
    top = psutil.Process(pid)
    yield top
    yield from top.children(recursive=True)


def same(one: Path, other: Path) -> bool:
    """The same weights, optimiser and reference, the same rollouts, the same figures."""
    from short_runs import metrics, untimed

    names = [*sorted(str(path.relative_to(one)) for path in one.rglob("*.safetensors")), "rollouts.jsonl"]
    files = all((one / name).read_bytes() == (other / name).read_bytes() for name in names)
    return files and untimed(metrics(one)) == untimed(metrics(other)) and len(names) > 3


if __name__ == "__main__":
    main()
