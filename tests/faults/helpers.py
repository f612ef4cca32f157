"""What several fault tests ask."""

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
    """Outbox entries and leases: 0 when there is nothing to do and nobody does anything."""
    rows = database.rows("SELECT (SELECT count(*) FROM task_outbox) + (SELECT count(*) FROM task_leases)")
    return int(str(rows[0][0]))


def finish(database: Database, worker: Process, *, seconds: float = PATIENCE) -> None:
    """Wait until this worker has left nothing to do, and stop it."""
    until(worker.is_up, seconds=seconds)
    until(lambda: left(database) == 0 or worker.poll() is not None, seconds=seconds)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.text()


def all_completed(database: Database, ids: Iterable[UUID]) -> None:
    """Each once, and the tables tell one story."""
    for one in ids:
        history = [event.event_type for event in database.store.history(one)]
        assert database.store.get(one).status is TaskStatus.COMPLETED, history
        assert history.count(EventType.COMPLETED) == 1
    assert left(database) == 0
    assert database.store.verify() == []


def started_by(directory: Path) -> set[int]:
    return {int(path.name.partition("-")[2]) for path in directory.glob("started-*")}


def journal(directory: Path) -> list[tuple[int, str, str]]:
    """Process, "begins" or "ends", name; in the order in which it happened."""
    path = directory / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(pid), what, name) for pid, what, name in map(str.split, lines)]
