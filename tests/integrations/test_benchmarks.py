"""The benchmark runs at its smallest size, without peers, so that nothing is installed. Each measure has its figures."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from pathlib import Path

import pytest

from benchmarks.__main__ import MEASURES
from benchmarks.goals import goals
from benchmarks.results import Results
from benchmarks.stages import STAGES
from tests import forked

ROOT = Path(__file__).parents[2]
MADE = {
    "enqueue": {"enqueue", "bulk"},
    "drain": {"drain", "drain.steady", "drain.worker"},
    "pickup": {"pickup.p50", "pickup.p99", "idle", "late", "late.worst"},
    "caller": {"caller", "caller.whole"},
    "claims": {"claim.1", "claim.100"},
    "producers": {"producers"},
    "handlers": {"handlers"},
    "memory": {"memory"},
    "backlog": {"backlog.400"},
    "history": {"history.1000"},
}
ON_POSTGRESQL = {
    "enqueue": {"enqueue.wal"},
    "drain": {"drain.server", "drain.wal", "drain2"},
    "history": {"buffers.1000.1", "buffers.1000.100"},
}
ON_SQLITE = {"producers": {"producers.worst"}}
FEW = ("enqueue", "pickup")
"""The measures of a run that takes only seconds. The campaign runs all measures on both databases."""


def test_these_tests_cover_every_measure():
    assert set(MEASURES) == set(MADE)


@pytest.mark.timeout(300)
def test_a_measure_has_figures_and_its_goals_are_judged(tmp_path):
    check("sqlite", FEW, tmp_path)


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_all_measures_have_figures_and_their_goals_are_judged(kind, tmp_path):
    check(kind, MEASURES, tmp_path)


def test_each_stage_of_a_task_takes_time():
    command = [*forked.PYTHON, "-m", "benchmarks.stages", "--on", "sqlite", "--rounds", "2"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[3:]]
    assert [row[0] for row in rows] == [*STAGES, "all"]
    assert all(float(cell) > 0 for row in rows for cell in row[1:])


def check(kind: str, measures: Collection[str], folder: Path) -> None:
    run = folder / "run.json"
    chosen = [word for name in measures for word in ("--only", name)]
    command = [*forked.PYTHON, "-m", "benchmarks", "--tiny", "--peer", "none", "--on", kind, *chosen]
    words = [*command, "--json", str(run), "--cache", str(folder)]
    done = forked.run(words, starts_others=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    results = Results.read(run)
    own = ON_POSTGRESQL if kind == "postgresql" else ON_SQLITE
    wanted = {f"{kind}.{key}" for name in measures for key in MADE[name] | own.get(name, set())}
    without = {f"{kind}, later: raw": "not told by the driver when a task is due"}
    if kind == "sqlite":
        without = {f"{name} FULL": why for name, why in without.items()}
        without["sqlite, drain by 2: raw FULL, outboxq FULL"] = "only in a full run"
    if f"{kind}, producers" in results.missing:  # PostgreSQL from a wheel has no pgbench
        without[f"{kind}, producers"] = "there is no pgbench, which comes with PostgreSQL"
        wanted.remove(f"{kind}.producers")
    assert results.missing.items() <= without.items(), done.stderr
    assert set(results.measures) == wanted
    for key, measure in results.measures.items():
        for who, values in measure.samples.items():
            assert values, (key, who)
            assert all(math.isfinite(value) and value >= 0 for value in values), (key, who, values)

    judged = [goal for goal in goals(results) if goal.value is not None]
    assert judged
    for goal in judged:
        assert f"\n{goal.of} " in done.stdout
    assert json.loads(run.read_text())["about"]["command"].startswith(f"nox -s bench -- --tiny --only {chosen[1]}")
