"""The tables of statistics: what workers counted, and samples of what waits. On PostgreSQL also a function for autoscalers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from outboxq.migrations import admit_from

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BUCKETS = 23


class Bounded(sa.types.UserDefinedType[Any]):
    """A domain of revision 0001."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        return self.name


instant = Bounded("outboxq_instant").with_variant(sa.Text(), "sqlite")

COUNTS = (
    "completed",
    "retried",
    "failed",
    "cancelled",
    "snoozed",
    "released",
    "lost",
    "timed_out",
    "timed_out_last",
)


def _instants(*columns: str) -> dict[str, str]:
    return {
        column: f"{column} GLOB '????-??-??T??:??:??.??????+00:00' AND {column} >= '1970' AND {column} < '9001'"
        for column in columns
    }


SQLITE_CHECKS = {
    "task_metrics": {
        "id": "length(id) = 32 AND lower(id) = id AND id < 'g'",
        "queue": "typeof(queue) <> 'blob'",
        "task_name": "typeof(task_name) <> 'blob'",
        **_instants("at"),
    },
    "queue_samples": {"queue": "typeof(queue) <> 'blob'", **_instants("at", "oldest_ready_at")},
    "maintenance_jobs": _instants("due_at", "done_at"),
}
"""What PostgreSQL's types say."""


def upgrade() -> None:
    op.create_table(
        "task_metrics",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("at", instant, nullable=False),
        sa.Column("seconds", sa.Integer(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Uuid()),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in COUNTS),
        sa.Column("wait_seconds", sa.Double(), nullable=False),
        sa.Column("run_seconds", sa.Double(), nullable=False),
        *(
            sa.Column(f"{name}_{bucket}", sa.Integer(), nullable=False)
            for name in ("wait", "run")
            for bucket in range(BUCKETS)
        ),
        sa.PrimaryKeyConstraint("id", name="pk_task_metrics"),
        *_checks("task_metrics"),
    )
    op.create_index("ix_task_metrics_at", "task_metrics", ["at"])
    op.create_table(
        "queue_samples",
        sa.Column("at", instant, nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("ready", sa.BigInteger(), nullable=False),
        sa.Column("delayed", sa.BigInteger(), nullable=False),
        sa.Column("running", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("oldest_ready_at", instant),
        sa.Column("exact", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("at", "queue", name="pk_queue_samples"),
        *_checks("queue_samples"),
    )
    op.create_table(
        "maintenance_jobs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("due_at", instant, nullable=False),
        sa.Column("done_at", instant),
        sa.PrimaryKeyConstraint("name", name="pk_maintenance_jobs"),
        *_checks("maintenance_jobs"),
    )
    if context.get_context().dialect.name == "postgresql":
        _backlog_function()
    admit_from("0001")


def downgrade() -> None:
    if context.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION outboxq_backlog")
    for table in ("maintenance_jobs", "queue_samples", "task_metrics"):
        op.drop_table(table)
    admit_from("0001")


def _backlog_function() -> None:
    """The present work of one queue, in numbers that stay what they are while the tables change: the contract for autoscalers.

    It costs the same whatever waits and whatever has happened. At most 10 000 due entries are counted, by the indexes that claims
    go by: one range for each priority without keys, one for all keys. No index has the time of a claim. So the starts are counted
    twice and the greater count is taken, since neither is too high. The newest 10 000 events are exact for up to some 50 tasks a
    second, also where no worker writes statistics. Above that the workers' own counts are: seven rows of each worker and task, up
    to 10 s late. A role that was granted its rights before this revision may not read them, and then gets the first count.

    It runs with the rights of its caller. Its plans are kept by the session, and made while the tables may be empty: so they are
    made without sequential scans.
    """
    attempts = " + ".join(f"metrics.wait_{bucket}" for bucket in range(BUCKETS))
    op.execute(
        f"""
        DO $do$ BEGIN EXECUTE format($create$
        CREATE FUNCTION outboxq_backlog(
            queue text,
            OUT ready bigint,
            OUT oldest_seconds double precision,
            OUT started_last_minute bigint,
            OUT running bigint
        ) LANGUAGE plpgsql STABLE
        SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
        #variable_conflict use_variable
        DECLARE
            most CONSTANT bigint := 10000;
            part CONSTANT bigint := 1000;
            moment CONSTANT timestamptz := statement_timestamp();
            since CONSTANT timestamptz := moment - interval '1 minute';
            level integer := -32768;
            oldest timestamptz;
            due_now bigint;
            due_since timestamptz;
            number bigint := 9223372036854775807;
            looked_at bigint := 0;
            events bigint;
            recent bigint;
            begun bigint;
        BEGIN
            IF queue IS NULL THEN
                RAISE invalid_parameter_value USING
                    MESSAGE = 'outboxq_backlog is asked about one queue, and NULL is none; name it';
            END IF;
            ready := 0;
            LOOP
                SELECT entry.priority INTO level FROM %1$I.task_outbox AS entry
                WHERE entry.queue = queue AND entry.partition_key IS NULL AND entry.priority > level
                ORDER BY entry.priority LIMIT 1;
                EXIT WHEN NOT FOUND;
                SELECT count(*), min(due.available_at) INTO due_now, due_since
                FROM (
                    SELECT entry.available_at FROM %1$I.task_outbox AS entry
                    WHERE entry.queue = queue AND entry.partition_key IS NULL AND entry.priority = level
                        AND entry.available_at <= moment
                    ORDER BY entry.available_at LIMIT greatest(1, most - ready)
                ) AS due;
                ready := ready + due_now;
                oldest := least(oldest, due_since);
            END LOOP;
            SELECT count(*), min(due.available_at) INTO due_now, due_since
            FROM (
                SELECT entry.available_at FROM %1$I.task_outbox AS entry
                WHERE entry.queue = queue AND entry.partition_key IS NOT NULL AND entry.available_at <= moment
                ORDER BY entry.available_at LIMIT greatest(1, most - ready)
            ) AS due;
            ready := least(most, ready + due_now);
            oldest := least(oldest, due_since);
            oldest_seconds := coalesce(extract(epoch FROM moment - oldest), 0);
            started_last_minute := 0;
            LOOP
                SELECT
                    count(*), count(*) FILTER (WHERE newest.created_at >= since), min(newest.sequence_num),
                    count(*) FILTER (WHERE newest.event_type = 'task_claimed' AND newest.created_at >= since AND queue = (
                        SELECT task.queue FROM %1$I.task_executions AS task WHERE task.id = newest.task_execution_id
                    ))
                INTO events, recent, number, begun
                FROM (
                    SELECT event.sequence_num, event.created_at, event.event_type, event.task_execution_id
                    FROM %1$I.execution_events AS event
                    WHERE event.sequence_num < number
                    ORDER BY event.sequence_num DESC LIMIT part
                ) AS newest;
                started_last_minute := started_last_minute + begun;
                looked_at := looked_at + events;
                EXIT WHEN events < part OR recent = 0 OR looked_at >= most;
            END LOOP;
            IF has_table_privilege(%2$L, 'SELECT') THEN
                SELECT greatest(started_last_minute, sum({attempts})) INTO started_last_minute
                FROM %1$I.task_metrics AS metrics
                WHERE metrics.at >= since - interval '10 seconds' AND metrics.queue = queue;
            END IF;
            SELECT count(*) INTO running
            FROM (SELECT FROM %1$I.task_leases AS lease WHERE lease.queue = queue LIMIT most) AS leased;
        END
        $$
        $create$, current_schema(), format('%I.task_metrics', current_schema())); END $do$
        """  # noqa: S608 - the names of columns
    )


def _checks(table: str) -> list[sa.CheckConstraint]:
    conditions = SQLITE_CHECKS.get(table, {}) if context.get_context().dialect.name == "sqlite" else {}
    return [sa.CheckConstraint(text, name=op.f(f"ck_{table}_{name}")) for name, text in conditions.items()]
