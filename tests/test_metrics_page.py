"""docs/metrics.md defines exactly what a run logs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from short_runs import metrics
from tiny_run import tiny_run

from phloem import AlarmsConfig, PhloemError

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def defined(kind: str) -> set[str]:
    """The keys in the first column of a kind's tables."""
    section = re.search(rf"^## kind: {kind}$(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/metrics.md has no section on {kind}"
    cells = re.findall(r"^\| (`.*?) \|", section[1], re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


def logged(run: Path) -> dict[str, set[str]]:
    """The keys of each kind of line in a run's metrics."""
    keys: dict[str, set[str]] = {}
    for record in metrics(run):
        keys.setdefault(record.pop("kind"), set()).update(record)
    return keys


@pytest.mark.model
def test_the_page_defines_every_key_that_a_run_logs_and_no_other(tmp_path):
    tiny_run(tmp_path)
    with pytest.raises(PhloemError):  # the same reward for all: an alarm, and nothing learnt
        tiny_run(tmp_path / "flat", reward=lambda *_: 1.0, sections={"alarms": AlarmsConfig(clipped=1)})
    found = logged(tmp_path / "run") | {"alarm": logged(tmp_path / "flat" / "run").get("alarm")}
    assert found == {kind: defined(kind) for kind in ("cold_start", "evaluation", "train", "alarm")}
