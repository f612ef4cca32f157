"""Publish the figures of a run in the documentation: the run's file, some of its charts, and the README's table of
ratios.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import charts
from benchmarks.queues import OUTBOXQ, POSTGRESQL, RAW, ROOT
from benchmarks.results import MORE_IS_BETTER, Results

FOLDER = "docs/explanation/benchmark"
RUN = "run.json"
CHARTS = (
    "postgresql.enqueue",
    "postgresql.bulk",
    "postgresql.drain",
    "postgresql.drain.worker",
    "postgresql.drain2",
    "postgresql.pickup.p50",
    "sqlite.enqueue",
    "sqlite.drain",
    "sqlite.pickup.p50",
)
HEADS = {RAW: "hand-written SQL"}
HEAD = "| outboxq is … times as fast as |"
TABLE = re.compile(rf"^{re.escape(HEAD)}.*\n(\|.*\n)*", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the README's table. `how` is SQLite's setting of `synchronous` for the compared queues."""

    said: str
    key: str
    how: str = ""


ROWS = (
    Row(said="PostgreSQL: enqueue, one transaction each", key="postgresql.enqueue"),
    Row(said="enqueue 10 000 in one call", key="postgresql.bulk"),
    Row(said="drain a backlog, one process", key="postgresql.drain"),
    Row(said="begin a task when it arrives (p50)", key="postgresql.pickup.p50"),
    Row(said="SQLite: enqueue, one transaction each", key="sqlite.enqueue", how="FULL"),
    Row(said="drain a backlog, one process", key="sqlite.drain", how="FULL"),
)


def publish(run: Path, root: Path = ROOT) -> None:
    """Publish this run. Raises ValueError, and writes nothing, unless README.md has exactly one such table."""
    folder, readme = root / FOLDER, root / "README.md"
    results = Results.read(run)
    text, found = TABLE.subn(table(results), readme.read_text())
    if found != 1:
        raise ValueError(f"README.md must have one table that begins with {HEAD!r}, not {found}")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    charts.write(results, folder, CHARTS)
    if run.resolve() != (folder / RUN).resolve():
        shutil.copyfile(run, folder / RUN)
    readme.write_text(text)


def table(results: Results) -> str:
    """Return the table that says how many times as fast outboxq is as each other queue."""
    others = [queue.peer for queue in POSTGRESQL if queue.peer != OUTBOXQ]
    lines = [
        f"{HEAD} {' | '.join(HEADS.get(one, one) for one in others)} |",
        f"|---|{'---:|' * len(others)}",
        *(f"| {row.said} | {' | '.join(_cells(results, row, others))} |" for row in ROWS),
    ]
    return "\n".join(lines) + "\n"


def _cells(results: Results, row: Row, others: list[str]) -> Iterator[str]:
    measure = results.measures.get(row.key)
    for other in others:
        ratio = None
        for how in (row.how, "NORMAL") if row.how else ("",):
            ours, theirs = (f"{who} {how}".strip() for who in (OUTBOXQ, other))
            if measure and ratio is None:
                one, two = (ours, theirs) if measure.unit in MORE_IS_BETTER else (theirs, ours)
                ratio = measure.ratio(one, two)
        yield (
            "" if ratio is None else f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"
        )
