"""Write waiting tasks in bulk, as a backlog of any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.past import Past

FILL = {
    "postgresql": """
        WITH made AS MATERIALIZED (
            SELECT n, to_timestamp(ms / 1000.0) AS began,
                (lpad(to_hex(ms), 12, '0') || '7' || substr(mixed, 1, 3) || '8' || substr(mixed, 4, 15))::uuid AS id
            FROM (SELECT n, :first + n * CAST(:span AS bigint) / :rows AS ms, md5(n::text || :queue) AS mixed
                FROM generate_series(CAST(:low AS bigint), CAST(:high AS bigint)) AS n) AS numbered
        ), executions AS (
            INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
                recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at)
            SELECT id, id, 'bench.nothing', :queue, n, 0, '{"number": ' || n || '}', 'Ready', 1, 0, 60, 0, 'release',
                began, began FROM made
        ), entries AS (
            INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
            SELECT id, :queue, 0, n, began, began FROM made
        )
        INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, event_data, created_at)
        SELECT id, id, 'task_created', json_build_object('available_at', began)::text, began FROM made
    """,
    "sqlite": """
        WITH RECURSIVE numbered(n) AS (SELECT :low UNION ALL SELECT n + 1 FROM numbered WHERE n < :high)
        INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
            recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at)
        SELECT id, id, 'bench.nothing', :queue, n, 0, '{"number": ' || n || '}', 'Ready', 1, 0, 60, 0, 'release',
            began, began
        FROM (SELECT n, printf('%012x70008%05x%010x', ms, :mark, n) AS id,
                strftime('%Y-%m-%dT%H:%M:%S', ms / 1000, 'unixepoch') || printf('.%03d000+00:00', ms % 1000) AS began
            FROM (SELECT n, :first + n * :span / :rows AS ms FROM numbered));
        INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
        SELECT id, queue, 0, position, created_at, created_at FROM task_executions
        WHERE queue = :queue AND task_executions.rowid > :seen;
        INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, event_data, created_at)
        SELECT id, id, 'task_created', json_object('available_at', created_at), created_at FROM task_executions
        WHERE queue = :queue AND task_executions.rowid > :seen
    """,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting(Past):
    """This number of Ready tasks, with due times spread evenly between two points in time."""

    fills: ClassVar[Mapping[str, str]] = FILL
    tables: ClassVar[str] = "task_executions, execution_events, task_outbox"

    queue: str = "bench"
