"""Functions that several fault tests use."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from outboxq.model import EventType, TaskStatus
from tests.conftest import Database
from tests.faults.workers import Process
from tests.waiting import PATIENCE, until


def left(database: Database) -> int:
    """Return the number of outbox entries and leases: 0 if no task is Ready or Running."""
    rows = database.rows("SELECT (SELECT count(*) FROM task_outbox) + (SELECT count(*) FROM task_leases)")
    return int(str(rows[0][0]))


def finish(database: Database, worker: Process, *, seconds: float = PATIENCE) -> None:
    """Wait until no tasks are left, and stop the worker."""
    until(worker.is_up, seconds=seconds)
    until(lambda: left(database) == 0 or worker.poll() is not None, seconds=seconds)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.text()


def all_completed(database: Database, ids: Iterable[UUID]) -> None:
    """Check that each task was completed once and that the tables agree."""
    for one in ids:
        history = [event.event_type for event in database.store.history(one)]
        assert database.store.get(one).status is TaskStatus.COMPLETED, history
        assert history.count(EventType.COMPLETED) == 1
    assert left(database) == 0
    assert database.store.verify() == []


def started_by(directory: Path) -> set[int]:
    return {int(path.name.partition("-")[2]) for path in directory.glob("started-*")}


def journal(directory: Path) -> list[tuple[int, str, str]]:
    """Return a pid, "begins" or "ends", and a name for each entry, in the order of the entries."""
    path = directory / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(pid), what, name) for pid, what, name in map(str.split, lines)]
