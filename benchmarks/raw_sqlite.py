"""The hand-written SQL of `raw.py` for SQLite, as scripts. Each script runs in one BEGIN IMMEDIATE transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4

DUE = """
SELECT id, task_execution_id FROM task_outbox
WHERE queue = 'bench' AND partition_key IS NULL AND priority = 0 AND available_at <= :now
ORDER BY available_at, id LIMIT :limit
"""
CLAIM = (
    "DELETE FROM task_outbox WHERE id IN (SELECT value FROM json_each(:entries))",
    """
    UPDATE task_executions SET status = 'Running', lease_token = lease_token + 1, worker_id = :worker,
        first_started_at = coalesce(first_started_at, :now), started_at = :now, updated_at = :now
    WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'Ready'
    """,
    """
    INSERT INTO task_leases (task_execution_id, queue, lease_token, worker_id, lease_expires_at)
    SELECT id, queue, lease_token, :worker, :now FROM task_executions WHERE id IN (SELECT value FROM json_each(:ids))
    """,
    """
    INSERT INTO execution_events
        (pipeline_execution_id, task_execution_id, event_type, worker_id, lease_token, created_at)
    SELECT pipeline_execution_id, id, 'task_claimed', :worker, lease_token, :now
    FROM task_executions WHERE id IN (SELECT value FROM json_each(:ids))
    """,
)
CLAIMED = """
SELECT id, lease_token, task_name, args, attempt FROM task_executions WHERE id IN (SELECT value FROM json_each(:ids))
"""
COMPLETE = (
    """
    INSERT INTO execution_events
        (pipeline_execution_id, task_execution_id, event_type, worker_id, lease_token, created_at)
    SELECT pipeline_execution_id, id, 'task_completed', :worker, lease_token, :now
    FROM task_executions WHERE id IN (SELECT value FROM json_each(:ids)) AND worker_id = :worker
    """,
    """
    UPDATE task_executions SET status = 'Completed', worker_id = NULL, completed_at = :now, updated_at = :now
    WHERE id IN (SELECT value FROM json_each(:ids)) AND worker_id = :worker AND status = 'Running'
    """,
    "DELETE FROM task_leases WHERE task_execution_id IN (SELECT value FROM json_each(:ids)) AND worker_id = :worker",
)
ENQUEUE = (
    """
    INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
        recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at)
    VALUES (:id, :id, 'bench.nothing', 'bench', 0, 0, :args, 'Ready', 1, 0, 60, 0, 'release', :now, :now)
    """,
    """
    INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, event_data, created_at)
    VALUES (:id, :id, 'task_created', '{"available_at": "2000-01-01T00:00:00+00:00"}', :now)
    """,
    """
    INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
    VALUES (:id, 'bench', 0, 0, :now, :now)
    """,
)


class Hand:
    """A connection and a worker's id."""

    def __init__(self, path: str, *, relaxed: bool = False) -> None:
        """With `relaxed`, the connection uses synchronous=NORMAL, which may lose the last commits in a power failure."""
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA busy_timeout = 30000")
        self._connection.execute("PRAGMA journal_mode = WAL")
        if relaxed:
            self._connection.execute("PRAGMA synchronous = NORMAL")
        self._worker = uuid4().hex

    def enqueue(self, ids: Sequence[UUID], numbers: Sequence[int] | None = None) -> None:
        moment = now()
        told = numbers if numbers is not None else [1] * len(ids)
        rows = [
            {"id": identity.hex, "args": f'{{"number":{number}}}', "now": moment}
            for identity, number in zip(ids, told, strict=True)
        ]
        self._connection.execute("BEGIN IMMEDIATE")
        for statement in ENQUEUE:
            if len(rows) == 1:
                self._connection.execute(statement, rows[0])
            else:
                self._connection.executemany(statement, rows)
        self._connection.execute("COMMIT")

    def claim(self, limit: int) -> list[str]:
        return [claim[0] for claim in self.complete_and_claim([], limit)]

    def complete(self, ids: Sequence[str]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._script(COMPLETE, ids)
        self._connection.execute("COMMIT")

    def complete_and_claim(self, ids: Sequence[str], limit: int) -> list[tuple[str, str]]:
        """Complete tasks and claim others in one transaction. Returns the ids and the arguments of the claimed tasks."""
        self._connection.execute("BEGIN IMMEDIATE")
        if ids:
            self._script(COMPLETE, ids)
        found = self._connection.execute(DUE, {"now": now(), "limit": limit}).fetchall()
        claimed = []
        if found:
            due = [row[1] for row in found]
            self._script(CLAIM, due, entries=json.dumps([row[0] for row in found]))
            claimed = self._connection.execute(CLAIMED, {"ids": json.dumps(due)}).fetchall()
        self._connection.execute("COMMIT")
        return [(row[0], row[3]) for row in claimed]

    def changes(self) -> int:
        """Return a number that changes when another connection has committed."""
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self._connection.close()

    def _script(self, script: Sequence[str], ids: Sequence[str], **values: str) -> None:
        values |= {"ids": json.dumps(ids), "now": now(), "worker": self._worker}
        for statement in script:
            self._connection.execute(statement, values)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
