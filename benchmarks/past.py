"""Write finished tasks of many months in bulk, to fill the tables as an old application would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from sqlalchemy import Connection, Engine, text

CHUNK = 500_000
RESTLESS = "SET synchronous_commit = off; SET maintenance_work_mem = '512MB'; SET max_parallel_maintenance_workers = 2"

# Task n ended half a second after it was created. Its three events are consecutive. The number and the time make its id
# unique.
FILL = {
    "postgresql": """
        WITH made AS MATERIALIZED (
            SELECT n, ms, to_timestamp(ms / 1000.0) AS began, to_timestamp(ms / 1000.0) + interval '500 ms' AS ended,
                (lpad(to_hex(ms), 12, '0') || '7' || substr(mixed, 1, 3) || '8' || substr(mixed, 4, 15))::uuid AS id
            FROM (SELECT n, :first + n * CAST(:span AS bigint) / :rows AS ms, md5(n::text || :queue) AS mixed
                FROM generate_series(CAST(:low AS bigint), CAST(:high AS bigint)) AS n) AS numbered
        ), executions AS (
            INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
                recovery_attempts, lease_seconds, lease_token, on_dead_letter, first_started_at, started_at, completed_at,
                created_at, updated_at)
            SELECT id, id, 'bench.past', :queue, n, 0, '{"number": ' || n || '}', 'Completed', 1, 0, 60, 1, 'release',
                began, began, ended, began, ended FROM made
        )
        INSERT INTO execution_events
            (pipeline_execution_id, task_execution_id, event_type, event_data, worker_id, lease_token, created_at)
        SELECT id, id, kind, said, worker, token, happened FROM made CROSS JOIN LATERAL (VALUES
            ('task_created', '{"available_at": "2024-01-01T00:00:00+00:00"}', CAST(NULL AS uuid), CAST(NULL AS bigint), began),
            ('task_claimed', '{"attempt": 1}', '01900000-0000-7000-8000-000000000001', 1, began),
            ('task_completed', NULL, '01900000-0000-7000-8000-000000000001', 1, ended)
        ) AS happened (kind, said, worker, token, happened)
    """,
    "sqlite": """
        WITH RECURSIVE numbered(n) AS (SELECT :low UNION ALL SELECT n + 1 FROM numbered WHERE n < :high)
        INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
            recovery_attempts, lease_seconds, lease_token, on_dead_letter, first_started_at, started_at, completed_at,
            created_at, updated_at)
        SELECT id, id, 'bench.past', :queue, n, 0, '{"number": ' || n || '}', 'Completed', 1, 0, 60, 1, 'release',
            began, began, began, began, began
        FROM (SELECT n, printf('%012x70008%05x%010x', ms, :mark, n) AS id,
                strftime('%Y-%m-%dT%H:%M:%S', ms / 1000, 'unixepoch') || printf('.%03d000+00:00', ms % 1000) AS began
            FROM (SELECT n, :first + n * :span / :rows AS ms FROM numbered));
        WITH kinds(kind, said, worker, token) AS (VALUES
            ('task_created', '{"available_at": "2024-01-01T00:00:00+00:00"}', NULL, NULL),
            ('task_claimed', '{"attempt": 1}', '01900000000070008000000000000001', 1),
            ('task_completed', NULL, '01900000000070008000000000000001', 1))
        INSERT INTO execution_events
            (pipeline_execution_id, task_execution_id, event_type, event_data, worker_id, lease_token, created_at)
        SELECT id, id, kind, said, worker, token, created_at FROM task_executions CROSS JOIN kinds
        WHERE queue = :queue AND task_executions.rowid > :seen
    """,
}
INDEXES = {
    "postgresql": "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'execution_events' AND indexname <> 'pk_execution_events'",
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'execution_events' AND sql IS NOT NULL",
}

# The positions did not come from the sequence, so the sequence must be moved past them.
LARGEST = "(SELECT coalesce(max(position), 1) FROM task_executions)"
COUNTED = {
    "postgresql": f"SELECT setval('task_position', greatest({LARGEST}, nextval('task_position')))",
    "sqlite": f"""
        INSERT INTO sqlite_sequence (name, seq) SELECT 'task_outbox', 0
        WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'task_outbox');
        UPDATE sqlite_sequence SET seq = max(seq, {LARGEST}) WHERE name = 'task_outbox'
    """,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """This number of tasks, spread evenly between two points in time."""

    fills: ClassVar[Mapping[str, str]] = FILL
    tables: ClassVar[str] = "task_executions, execution_events"

    rows: int
    begin: datetime
    end: datetime
    queue: str = "past"

    @classmethod
    def of_months(cls, rows: int) -> Past:
        """Return tasks from a period of more than a year that ended two days ago."""
        now = datetime.now(UTC)
        return cls(rows=rows, begin=now - timedelta(days=400), end=now - timedelta(days=2))

    def moment(self, number: int) -> datetime:
        """Return the time at which task `number` was created."""
        return self.begin + (self.end - self.begin) * number / self.rows

    def write(self, engine: Engine, *, bulk: bool = True) -> None:
        """Write the tasks in one transaction. With `bulk`, the indexes of the events are dropped and created again at the
        end, and PostgreSQL's tables are emptied first.

        If wal_level is minimal, PostgreSQL writes no WAL for tables that were emptied in the same transaction.
        """
        kind = engine.dialect.name
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if kind == "postgresql":
                connection.exec_driver_sql(RESTLESS)
            connection.exec_driver_sql("BEGIN")
            indexes = connection.exec_driver_sql(INDEXES[kind]).all() if bulk else []
            if bulk and kind == "postgresql":
                connection.exec_driver_sql(f"TRUNCATE {self.tables}")
            for name, _ in indexes:
                connection.exec_driver_sql(f"DROP INDEX {name}")
            for low in range(1, self.rows + 1, CHUNK):
                self._fill(connection, low, min(low + CHUNK - 1, self.rows))
            for statement in COUNTED[kind].split(";"):
                connection.exec_driver_sql(statement)
            for _, definition in indexes:
                connection.exec_driver_sql(
                    definition.replace("%", "%%").replace(" ON ONLY ", " ON ")
                )  # includes the partitions
            connection.exec_driver_sql("COMMIT")
            if kind == "postgresql":
                connection.exec_driver_sql("RESET ALL")

    def _fill(self, connection: Connection, low: int, high: int) -> None:
        kind = connection.dialect.name
        values = {
            "low": low,
            "high": high,
            "rows": self.rows,
            "queue": self.queue,
            "first": int(self.begin.timestamp() * 1000),
            "span": int((self.end - self.begin).total_seconds() * 1000),
        }
        if kind == "sqlite":
            newest = connection.exec_driver_sql("SELECT coalesce(max(rowid), 0) FROM task_executions").scalar_one()
            values |= {"seen": newest, "mark": int(self.end.timestamp()) % 0xFFFFF}
        for statement in self.fills[kind].split(";"):
            wanted = {name: value for name, value in values.items() if f":{name}" in statement}
            connection.execute(text(statement), wanted)


def tidy(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE" if engine.dialect.name == "postgresql" else "ANALYZE")
