"""The hand-written SQL of `raw.py` for SQLite: scripts of statements, each run in one BEGIN IMMEDIATE."""

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
    SELECT value, value, 'bench.nothing', 'bench', 0, 0, '{"number": 1}', 'Ready', 1, 0, 60, 0, 'release', :now, :now
    FROM json_each(:ids)
    """,
    """
    INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, event_data, created_at)
    SELECT value, value, 'task_created', '{"available_at": "2000-01-01T00:00:00+00:00"}', :now FROM json_each(:ids)
    """,
    """
    INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
    SELECT value, 'bench', 0, 0, :now, :now FROM json_each(:ids)
    """,
)


class Hand:
    """One connection, and a worker's id."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA busy_timeout = 30000")
        self._worker = uuid4().hex

    def enqueue(self, ids: Sequence[UUID]) -> None:
        self._run(ENQUEUE, [one.hex for one in ids])

    def claim(self, limit: int) -> list[str]:
        self._connection.execute("BEGIN IMMEDIATE")
        found = self._connection.execute(DUE, {"now": _now(), "limit": limit}).fetchall()
        ids = [row[1] for row in found]
        self._script(CLAIM, ids, entries=json.dumps([row[0] for row in found]))
        self._connection.execute(CLAIMED, {"ids": json.dumps(ids)}).fetchall()
        self._connection.execute("COMMIT")
        return ids

    def complete(self, ids: Sequence[str]) -> None:
        self._run(COMPLETE, ids)

    def close(self) -> None:
        self._connection.close()

    def _run(self, script: Sequence[str], ids: Sequence[str]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._script(script, ids)
        self._connection.execute("COMMIT")

    def _script(self, script: Sequence[str], ids: Sequence[str], **values: str) -> None:
        values |= {"ids": json.dumps(ids), "now": _now(), "worker": self._worker}
        for statement in script:
            self._connection.execute(statement, values)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
