"""Create the tables, and the triggers that count the ends of batches.

On PostgreSQL, also create the trigger that wakes workers, and the functions that enqueue from SQL and answer autoscalers.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from outboxq.database.revisions import fingerprint

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class Named(sa.types.UserDefinedType[Any]):
    """A type of PostgreSQL, or one of `DOMAINS`."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        return self.name


# The values that claims, recoveries, ends and waits compute with are bounded, so that a row written by SQL cannot stop them all.
# On PostgreSQL, types bound them. A CHECK of a table is parsed again for each statement that writes a row, which would make an
# enqueue 13 % slower; the CHECK of a type is cached. For the same reason, related columns share one CHECK, without IN, which is
# a cast and an array.
DOMAINS = {
    "outboxq_instant": (
        "timestamptz",
        "from_1970_to_9000",
        "VALUE >= '1970-01-01 00:00:00+00' AND VALUE < '9001-01-01 00:00:00+00'",
    ),
    "outboxq_seconds": ("double precision", "from_0_to_a_hundred_years", "VALUE > 0 AND VALUE <= 3200000000"),
    "outboxq_attempts": ("integer", "from_1_to_2147483646", "VALUE BETWEEN 1 AND 2147483646"),
    "outboxq_recoveries": ("integer", "from_0_to_2147483646", "VALUE BETWEEN 0 AND 2147483646"),
    "outboxq_number": ("bigint", "from_0_to_10_to_the_18", "VALUE BETWEEN 0 AND 1000000000000000000"),
}
instant = Named("outboxq_instant").with_variant(sa.Text(), "sqlite")
moment = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
"""A time that only the database compares."""
seconds = Named("outboxq_seconds").with_variant(sa.Double(), "sqlite")
attempts = Named("outboxq_attempts").with_variant(sa.Integer(), "sqlite")
recoveries = Named("outboxq_recoveries").with_variant(sa.Integer(), "sqlite")
number = Named("outboxq_number").with_variant(sa.BigInteger(), "sqlite")

CHECKS = {
    "task_executions": {
        "status": (
            "CASE WHEN completed_at IS NULL THEN status = CASE WHEN worker_id IS NULL THEN 'Ready' ELSE 'Running' END "
            "ELSE worker_id IS NULL AND (status = 'Completed' OR status = 'Failed' OR status = 'Cancelled') END"
        ),
        "priority": "priority BETWEEN -100 AND 100",
        "names": "task_name <> '' AND queue <> '' AND partition_key <> ''",
        "on_dead_letter": "on_dead_letter = 'release' OR on_dead_letter = 'hold'",
    },
    "task_outbox": {"claimable": "priority BETWEEN -100 AND 100 AND queue <> '' AND partition_key <> ''"},
    "queue_settings": {
        "limits": "concurrency_limit >= 1 AND rate_limit >= 1 AND key_concurrency >= 1 AND key_rate_limit >= 1"
    },
    "task_schedules": {
        "names": "name <> '' AND task_name <> '' AND queue <> '' AND rule <> '' AND tz <> ''",
        "priority": "priority BETWEEN -100 AND 100",
        "on_dead_letter": "on_dead_letter = 'release' OR on_dead_letter = 'hold'",
        "overlap": "overlap = 'allow' OR overlap = 'queue' OR overlap = 'skip'",
        "catch_up": "catch_up_limit >= 1 AND (catch_up = 'none' OR catch_up = 'latest' OR catch_up = 'all')",
    },
    "task_steps": {"names": "name <> ''", "number": "number BETWEEN 1 AND 1000"},
    "inbox_messages": {"names": "consumer <> '' AND message_id <> ''"},
    "relays": {
        "names": "name <> ''",
        "shards": "shards BETWEEN 1 AND 64 AND failures >= 0",
        "on_refused": "on_refused = 'hold' OR on_refused = 'skip'",
    },
    "relay_messages": {"slot": "slot BETWEEN 0 AND 255"},
    "task_batches": {
        "kind": "kind = 'batch' OR kind = 'chain'",
        "on_failed": "on_failed = 'continue' OR on_failed = 'wait' OR on_failed = 'cancel'",
        "counts": "size >= 0 AND stage >= 0",
    },
}
"""The checks on both databases."""


def _sqlite_instants(*columns: str) -> dict[str, str]:
    # A character class such as [0-9] in the pattern would take twenty times as long.
    return {
        column: f"{column} GLOB '????-??-??T??:??:??.??????+00:00' AND {column} >= '1970' AND {column} < '9001'"
        for column in columns
    }


def _sqlite_numbers(least: str, most: str, *columns: str) -> dict[str, str]:
    return {column: f"{column} {least} AND {column} <= {most}" for column in columns}


def _sqlite_ids(*columns: str) -> dict[str, str]:
    return {column: f"length({column}) = 32 AND lower({column}) = {column} AND {column} < 'g'" for column in columns}


def _sqlite_texts(*columns: str) -> dict[str, str]:
    return {column: f"typeof({column}) <> 'blob'" for column in columns}  # everything else becomes text


SQLITE_CHECKS = {
    "task_executions": {
        **_sqlite_ids("id", "pipeline_execution_id"),
        **_sqlite_texts("task_name", "queue", "partition_key", "topic", "args", "headers"),
        **_sqlite_instants(
            "created_at", "expires_at", "first_started_at", "retry_at", "completed_at", "cancel_requested_at"
        ),
        **_sqlite_numbers("> 0", "3200000000", "lease_seconds", "timeout_seconds"),
        **_sqlite_numbers(">= 1", "2147483646", "attempt", "max_attempts"),
        **_sqlite_numbers(">= 0", "2147483646", "recovery_attempts"),
        **_sqlite_numbers(">= 0", "1000000000000000000", "lease_token", "position"),
    },
    "task_outbox": {
        **_sqlite_ids("task_execution_id"),
        **_sqlite_texts("queue", "partition_key", "topic"),
        **_sqlite_instants("available_at", "expires_at"),
        **_sqlite_numbers(">= 0", "1000000000000000000", "position"),
    },
    "task_leases": {
        **_sqlite_instants("lease_expires_at"),
        **_sqlite_numbers(">= 0", "1000000000000000000", "lease_token"),
    },
    "queue_settings": {
        **_sqlite_instants("rate_full_at", "paused_at"),
        **_sqlite_numbers("> 0", "3200000000", "rate_seconds", "key_rate_seconds"),
    },
    "key_rates": {**_sqlite_texts("queue", "partition_key"), **_sqlite_instants("full_at")},
    "task_schedules": {
        **_sqlite_texts("name", "task_name", "args", "queue", "rule", "tz"),
        **_sqlite_instants("starts_at", "ends_at", "planted_until", "paused_at", "created_at", "updated_at"),
        **_sqlite_numbers("> 0", "3200000000", "lease_seconds", "timeout_seconds", "grace_seconds", "jitter_seconds"),
        **_sqlite_numbers(">= 1", "2147483646", "max_attempts"),
    },
    "schedule_ticks": {**_sqlite_ids("task_execution_id"), **_sqlite_instants("tick")},
    "task_metrics": {**_sqlite_ids("id"), **_sqlite_texts("queue", "task_name"), **_sqlite_instants("at")},
    "queue_samples": {**_sqlite_texts("queue"), **_sqlite_instants("at", "oldest_due_at")},
    "maintenance_jobs": _sqlite_instants("due_at", "done_at"),
    "operator_actions": {**_sqlite_ids("id"), **_sqlite_texts("target"), **_sqlite_instants("at")},
    "task_steps": {
        **_sqlite_ids("task_execution_id"),
        **_sqlite_texts("name", "result"),
        **_sqlite_instants("due_at", "created_at"),
        **_sqlite_numbers(">= 0", "1000000000000000000", "lease_token"),
    },
    "inbox_messages": {**_sqlite_texts("consumer", "source", "message_id"), **_sqlite_instants("expires_at")},
    "relays": {
        **_sqlite_texts("name"),
        **_sqlite_instants("paused_at", "failing_since", "next_try_at", "created_at"),
    },
    "relay_shards": {
        **_sqlite_instants("lease_expires_at"),
        **_sqlite_numbers(">= 0", "1000000000000000000", "lease_token"),
    },
    "relay_messages": {
        **_sqlite_ids("event_id"),
        **_sqlite_texts("relay", "topic", "partition_key", "headers", "payload"),
        **_sqlite_instants("created_at"),
    },
    "task_batches": {
        **_sqlite_ids("id"),
        **_sqlite_texts("name", "then_tasks"),
        **_sqlite_instants("cancel_requested_at", "created_at", "updated_at", "completed_at"),
    },
}
"""The checks of PostgreSQL's types; one for each column, because SQLite evaluates only the checks of changed columns."""

# Small tables with short-lived rows: vacuum them by the number of dead rows, at full speed.
RESTLESS = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_vacuum_cost_delay": 0,
}


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
BUCKETS = 23
"""The counts of `task_metrics`, and the number of its buckets for waits and for runs."""

TABLES = (
    "task_executions",
    "task_outbox",
    "task_leases",
    "execution_events",
    "dead_letters",
    "idempotency_keys",
    "partition_claims",
    "task_subscriptions",
    "queue_settings",
    "key_rates",
    "workers",
    "sleeping_workers",
    "task_schedules",
    "schedule_ticks",
    "task_metrics",
    "queue_samples",
    "maintenance_jobs",
    "task_steps",
    "task_batches",
    "task_batch_changes",
    "operator_actions",
    "inbox_messages",
    "relays",
    "relay_shards",
    "relay_messages",
)
FUNCTIONS = (
    "outboxq_notify",
    "outboxq_notify_relay",
    "outboxq_enqueue",
    "outboxq_backlog",
    "outboxq_note_end",
    "outboxq_count_ends",
    "outboxq_advance_batch",
)


def upgrade() -> None:
    _version_columns()
    if _is_postgresql():
        op.execute("CREATE SEQUENCE task_position")
        for name, (base, constraint, condition) in DOMAINS.items():
            op.execute(f"CREATE DOMAIN {name} AS {base} CONSTRAINT {constraint} CHECK ({condition})")
    _task_executions()
    _task_outbox()
    _task_leases()
    _execution_events()
    _helpers()
    _queues()
    _workers()
    _schedules()
    _statistics()
    _steps()
    _batches()
    _operators()
    _messages()
    _relays()
    if _is_postgresql():
        _trigger()
        _relay_trigger()
        _enqueue_function()
        _backlog_function()


def downgrade() -> None:
    for column in ("fingerprint", "oldest_code"):
        op.drop_column(context.get_context().version_table, column)
    for table in reversed(TABLES):
        op.drop_table(table)  # with its triggers
    if _is_postgresql():
        for name in FUNCTIONS:
            op.execute(f"DROP FUNCTION {name}")
        op.execute("DROP SEQUENCE task_position")
        for name in DOMAINS:
            op.execute(f"DROP DOMAIN {name}")


def _version_columns() -> None:
    """Record the oldest code that the schema admits, and the fingerprint of this revision. Alembic then adds the revision."""
    table = context.get_context().version_table
    op.add_column(table, sa.Column("oldest_code", sa.String(32), server_default=revision, nullable=False))
    op.add_column(table, sa.Column("fingerprint", sa.String(32), server_default=fingerprint(), nullable=False))


def _task_executions() -> None:
    op.create_table(
        "task_executions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("pipeline_execution_id", sa.Uuid(), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text()),
        sa.Column("partition_key", sa.Text()),
        sa.Column("position", number, nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("headers", sa.Text()),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempt", attempts, nullable=False),
        sa.Column("max_attempts", attempts),
        sa.Column("recovery_attempts", recoveries, nullable=False),
        sa.Column("lease_seconds", seconds, nullable=False),
        sa.Column("timeout_seconds", seconds),
        sa.Column("lease_token", number, nullable=False),
        sa.Column("worker_id", sa.Uuid()),
        sa.Column("cancel_requested_at", instant),
        sa.Column("on_dead_letter", sa.Text(), nullable=False),
        sa.Column("expires_at", instant),
        sa.Column("retry_at", instant),
        sa.Column("first_started_at", instant),
        sa.Column("started_at", instant),
        sa.Column("completed_at", instant),
        sa.Column("created_at", instant, nullable=False),
        sa.Column("updated_at", instant, nullable=False),
        sa.Column("last_error", sa.Text()),
        sa.Column("result", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_task_executions"),
        *_checks("task_executions"),
    )
    _store("task_executions", {"fillfactor": 50})
    _partial_index(
        "ix_task_executions_pipeline", "task_executions", ["pipeline_execution_id"], "pipeline_execution_id != id"
    )


def _task_outbox() -> None:
    op.create_table(
        "task_outbox",
        sa.Column("id", big_id, sa.Identity(), nullable=False),
        sa.Column("task_execution_id", sa.Uuid(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("partition_key", sa.Text()),
        sa.Column("position", number, nullable=False),
        sa.Column("topic", sa.Text()),
        sa.Column("available_at", instant, nullable=False),
        sa.Column("expires_at", instant),
        sa.Column("created_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_task_outbox"),
        sa.UniqueConstraint("task_execution_id", name="uq_task_outbox_task_execution_id"),
        *_checks("task_outbox"),
        sqlite_autoincrement=True,
    )
    _store("task_outbox", RESTLESS)
    without_key, with_key = "partition_key IS NULL", "partition_key IS NOT NULL"
    _partial_index("ix_task_outbox_due", "task_outbox", ["queue", "priority", "available_at", "id"], without_key)
    head = ["queue", "partition_key", sa.text("priority DESC"), "position"]
    _partial_index("ix_task_outbox_key", "task_outbox", head, with_key)
    _partial_index("ix_task_outbox_key_due", "task_outbox", ["queue", "available_at", "id"], with_key)


def _task_leases() -> None:
    op.create_table(
        "task_leases",
        sa.Column("task_execution_id", sa.Uuid(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("lease_token", number, nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("lease_expires_at", instant, nullable=False),
        sa.Column("begun", sa.Boolean(), nullable=True),
        sa.Column("progress", sa.Double()),
        sa.Column("progress_note", sa.Text()),
        sa.PrimaryKeyConstraint("task_execution_id", name="pk_task_leases"),
        *_checks("task_leases"),
    )
    _store("task_leases", {"fillfactor": 50, **RESTLESS})


def _execution_events() -> None:
    op.create_table(
        "execution_events",
        sa.Column("sequence_num", big_id, sa.Identity(), nullable=False),
        sa.Column("pipeline_execution_id", sa.Uuid(), nullable=False),
        sa.Column("task_execution_id", sa.Uuid()),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("event_data", sa.Text()),
        sa.Column("worker_id", sa.Uuid()),
        sa.Column("lease_token", sa.BigInteger()),
        sa.Column("created_at", instant, nullable=False),
        _xact_id(),
        sa.PrimaryKeyConstraint("sequence_num", name="pk_execution_events"),
        sqlite_autoincrement=True,
    )
    token = ["task_execution_id", "lease_token"]
    _partial_index("uq_execution_events_claim", "execution_events", token, "event_type = 'task_claimed'", unique=True)
    _partial_index(
        "uq_execution_events_end",
        "execution_events",
        token,
        "event_type != 'task_claimed' AND lease_token IS NOT NULL",
        unique=True,
    )
    _partial_index("ix_execution_events_other", "execution_events", token[:1], "lease_token IS NULL")


def _helpers() -> None:
    op.create_table(
        "dead_letters",
        sa.Column("task_execution_id", sa.Uuid(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text()),
        sa.Column("partition_key", sa.Text()),
        sa.Column("exception", sa.Text()),
        sa.Column("failed_at", instant, nullable=False),
        sa.Column("lost_key", sa.Text()),
        sa.PrimaryKeyConstraint("task_execution_id", name="pk_dead_letters"),
    )
    op.create_index("ix_dead_letters_failed_at", "dead_letters", ["failed_at", "task_execution_id"])
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("task_execution_id", sa.Uuid(), nullable=False),
        sa.Column("expires_at", instant),
        sa.Column("until_finished", sa.Boolean(), nullable=False),
        sa.Column("created_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_task_execution_id", "idempotency_keys", ["task_execution_id"])
    op.create_table(
        "partition_claims",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("partition_key", sa.Text(), nullable=False),
        sa.Column("task_execution_id", sa.Uuid(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("queue", "partition_key", name="pk_partition_claims"),
        sa.UniqueConstraint("task_execution_id", name="uq_partition_claims_task_execution_id"),
    )
    _store("partition_claims", RESTLESS)
    op.create_table(
        "task_subscriptions",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("parameter", sa.Text()),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("max_attempts", attempts),
        sa.Column("lease_seconds", seconds, nullable=False),
        sa.Column("timeout_seconds", seconds),
        sa.Column("on_dead_letter", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("topic", "task_name", name="pk_task_subscriptions"),
    )


def _queues() -> None:
    op.create_table(
        "queue_settings",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("paused_at", instant),
        sa.Column("pause_reason", sa.Text()),
        sa.Column("concurrency_limit", sa.Integer()),
        sa.Column("rate_limit", sa.Integer()),
        sa.Column("rate_seconds", seconds),
        sa.Column("rate_full_at", instant),
        sa.Column("key_concurrency", sa.Integer()),
        sa.Column("key_rate_limit", sa.Integer()),
        sa.Column("key_rate_seconds", seconds),
        sa.Column("fair", sa.Boolean(), nullable=False),
        sa.Column("updated_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("queue", name="pk_queue_settings"),
        *_checks("queue_settings"),
    )
    op.create_table(
        "key_rates",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("partition_key", sa.Text(), nullable=False),
        sa.Column("full_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("queue", "partition_key", name="pk_key_rates"),
        *_checks("key_rates"),
    )
    op.create_index("ix_key_rates_full_at", "key_rates", ["queue", "full_at"])
    _store("key_rates", RESTLESS)


def _workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("queues", sa.Text()),
        sa.Column("topics", sa.Text()),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("task_names", sa.Text(), nullable=False),
        sa.Column("unknown_tasks", sa.Text()),
        sa.Column("started_at", instant, nullable=False),
        sa.Column("last_seen_at", instant, nullable=False),
        sa.Column("ended_at", instant),
        sa.Column("host", sa.Text()),
        sa.Column("pid", sa.Integer()),
        sa.Column("version", sa.Text()),
        sa.Column("release", sa.Text()),
        sa.Column("busy", sa.Integer()),
        sa.Column("isolation", sa.Text()),
        sa.Column("receivers", sa.Text()),
        sa.Column("asked_to", sa.Text()),
        sa.Column("state", sa.Text()),
        sa.Column("stacks_asked_at", instant),
        sa.Column("stacks", sa.Text()),
        sa.Column("stacks_at", instant),
        sa.Column("failure", sa.Text()),
        sa.Column("failing_since", instant),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    _partial_index("ix_workers_present", "workers", ["id"], "ended_at IS NULL")
    op.create_table(
        "sleeping_workers",
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("wakes_at", moment, nullable=False),
        sa.Column("session", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("worker_id", "queue", name="pk_sleeping_workers"),
    )
    _store("sleeping_workers", {"fillfactor": 50, **RESTLESS})
    op.create_index("ix_sleeping_workers_queue", "sleeping_workers", ["queue"])


def _schedules() -> None:
    op.create_table(
        "task_schedules",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("max_attempts", attempts),
        sa.Column("lease_seconds", seconds, nullable=False),
        sa.Column("timeout_seconds", seconds),
        sa.Column("on_dead_letter", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("tz", sa.Text(), nullable=False),
        sa.Column("overlap", sa.Text(), nullable=False),
        sa.Column("catch_up", sa.Text(), nullable=False),
        sa.Column("catch_up_limit", sa.Integer(), nullable=False),
        sa.Column("grace_seconds", seconds),
        sa.Column("jitter_seconds", seconds),
        sa.Column("starts_at", instant, nullable=False),
        sa.Column("ends_at", instant),
        sa.Column("declared_by", sa.Text()),
        sa.Column("declaration", sa.Text()),
        sa.Column("planted_until", instant, nullable=False),
        sa.Column("paused_at", instant),
        sa.Column("pause_reason", sa.Text()),
        sa.Column("created_at", instant, nullable=False),
        sa.Column("updated_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_task_schedules"),
        *_checks("task_schedules"),
    )
    op.create_table(
        "schedule_ticks",
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("tick", instant, nullable=False),
        sa.Column("task_execution_id", sa.Uuid(), nullable=False),
        sa.PrimaryKeyConstraint("schedule", "tick", name="pk_schedule_ticks"),
        *_checks("schedule_ticks"),
    )
    op.create_index("ix_schedule_ticks_task_execution_id", "schedule_ticks", ["task_execution_id"])


def _statistics() -> None:
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
        sa.Column("due", sa.BigInteger(), nullable=False),
        sa.Column("delayed", sa.BigInteger(), nullable=False),
        sa.Column("running", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("oldest_due_at", instant),
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


def _steps() -> None:
    op.create_table(
        "task_steps",
        sa.Column("task_execution_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("lease_token", number, nullable=False),
        sa.Column("result", sa.Text()),
        sa.Column("due_at", instant),
        sa.Column("created_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("task_execution_id", "name", name="pk_task_steps"),
        *_checks("task_steps"),
    )


def _batches() -> None:
    """Create batches, the changes of an open transaction, and the triggers that count ends and enqueue the following tasks.

    Triggers count the ends, and not outboxq's statements, so that every end of a member counts: by a worker of another release, by
    hand, or by plain SQL. The condition of the trigger on `task_executions` is one comparison with a constant: the first bit of a
    batch's id is one, and the first bit of a time-based id is zero.
    """
    op.create_table(
        "task_batches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text()),
        sa.Column("on_failed", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("cancelled", sa.Integer(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("then_tasks", sa.Text()),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("runs_then", sa.Boolean(), nullable=False),
        sa.Column("cancel_requested_at", instant),
        sa.Column("created_at", instant, nullable=False),
        sa.Column("updated_at", instant, nullable=False),
        sa.Column("completed_at", instant),
        sa.PrimaryKeyConstraint("id", name="pk_task_batches"),
        *_checks("task_batches"),
    )
    _partial_index("ix_task_batches_open", "task_batches", ["id"], "completed_at IS NULL")
    _store("task_batches", {"fillfactor": 50})
    op.create_table(
        "task_batch_changes",
        sa.Column("id", big_id, sa.Identity(), nullable=False),
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("added", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("cancelled", sa.Integer(), nullable=False),
        sa.Column("closes", sa.Boolean(), nullable=False),
        sa.Column("changed_at", instant, nullable=False),
        _xact_id(),
        sa.PrimaryKeyConstraint("id", name="pk_task_batch_changes"),
    )
    op.create_index("ix_task_batch_changes_xact_id", "task_batch_changes", ["xact_id"])
    _store("task_batch_changes", RESTLESS)
    for statement in BATCHES_ON_POSTGRESQL if _is_postgresql() else BATCHES_ON_SQLITE:
        op.execute(statement)


def _operators() -> None:
    op.create_table(
        "operator_actions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("at", instant, nullable=False),
        sa.Column("operator", sa.Text()),
        sa.Column("interface", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text()),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_operator_actions"),
        *_checks("operator_actions"),
    )
    op.create_index("ix_operator_actions_target", "operator_actions", ["target", "id"])


def _messages() -> None:
    op.create_table(
        "inbox_messages",
        sa.Column("consumer", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("expires_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("consumer", "source", "message_id", name="pk_inbox_messages"),
        *_checks("inbox_messages"),
    )
    op.create_index("ix_inbox_messages_expires_at", "inbox_messages", ["expires_at"])


def _relays() -> None:
    op.create_table(
        "relays",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("shards", sa.Integer(), nullable=False),
        sa.Column("on_refused", sa.Text(), nullable=False),
        sa.Column("paused_at", instant),
        sa.Column("pause_reason", sa.Text()),
        sa.Column("failing_since", instant),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("next_try_at", instant),
        sa.Column("last_error", sa.Text()),
        sa.Column("created_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_relays"),
        *_checks("relays"),
    )
    op.create_table(
        "relay_shards",
        sa.Column("relay", sa.Text(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("lease_token", number, nullable=False),
        sa.Column("worker_id", sa.Uuid()),
        sa.Column("lease_expires_at", instant),
        sa.Column("sleeps_until", moment),
        sa.PrimaryKeyConstraint("relay", "shard", name="pk_relay_shards"),
        *_checks("relay_shards"),
    )
    _store("relay_shards", {"fillfactor": 50, **RESTLESS})
    op.create_table(
        "relay_messages",
        sa.Column("id", big_id, sa.Identity(), nullable=False),
        sa.Column("relay", sa.Text(), nullable=False),
        sa.Column("slot", sa.SmallInteger(), nullable=False),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition_key", sa.Text()),
        sa.Column("headers", sa.Text()),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_relay_messages"),
        *_checks("relay_messages"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_relay_messages_relay", "relay_messages", ["relay", "id"])
    _store("relay_messages", RESTLESS)


def _relay_trigger() -> None:
    """Notify the sleeping senders of a relay of each new message, and nobody if none of them sleeps.

    An emit without a relay writes no row, so it does not call the function. `> <relay>` calls every sender of the relay. The
    function is VOLATILE, so that it reads the sleepers after the insert; `store/messages/relays.py` has the proof that no wake-up is
    lost. It runs as its owner, so that a producer needs no right on the shards. The setting `outboxq.notify` means the same as for
    tasks.
    """
    op.execute(
        """
        DO $do$ BEGIN EXECUTE format($create$
        CREATE FUNCTION outboxq_notify_relay() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp AS $$
        DECLARE
            notify text := current_setting('outboxq.notify', true);
        BEGIN
            IF notify = 'off' THEN
                RETURN NULL;
            ELSIF notify = 'always' OR current_setting('transaction_isolation') <> 'read committed' OR EXISTS (
                SELECT FROM %1$I.relay_shards AS shard
                WHERE shard.relay = NEW.relay AND shard.sleeps_until > clock_timestamp()
            ) THEN
                PERFORM pg_notify(CASE WHEN TG_TABLE_SCHEMA = 'public' THEN 'task_ready'
                    ELSE concat('task_ready_', TG_TABLE_SCHEMA)::name END, concat('> ', NEW.relay));
            END IF;
            RETURN NULL;
        END
        $$
        $create$, current_schema()); END $do$
        """
    )
    op.execute("REVOKE ALL ON FUNCTION outboxq_notify_relay() FROM PUBLIC")
    op.execute(
        "CREATE TRIGGER relay_messages_notify AFTER INSERT ON relay_messages "
        "FOR EACH ROW EXECUTE FUNCTION outboxq_notify_relay()"
    )


def _trigger() -> None:
    """Call one sleeping worker for each new task, and nobody if no worker sleeps.

    A statement sends one notification for each queue, or two if some of its tasks are due later. `1,<call>,<session>,<session>
    <queue>` calls the worker of the first session, and names a deputy. `@<epoch> <queue>` says when the first of the others is due.
    `* <queue>` calls every worker. The call and the order of the sessions depend on the transaction: its statements say the same,
    which the server sends once, and other transactions call other workers. A session whose lock is free has ended. The
    transaction then keeps that lock, so at most 32 sessions are tried: after the death of a whole fleet, more would fill the
    server's table of locks.

    At commit, NOTIFY takes a lock that all notifying commits share, so a busy system must not notify (`store/claims/sleeping_workers.py`
    has the proof that no wake-up is lost). A snapshot older than the statement may not see a worker that fell asleep, so above READ
    COMMITTED every enqueue notifies. `outboxq.notify` can be set for a transaction, a role or a database: to `always`, or to `off`,
    because a transaction that has notified cannot be prepared (two-phase commit). The function is VOLATILE, so that it reads the
    sleepers after the insert; the proof depends on that.
    """
    # The channel is named after the table's current schema, which `store/claims/sleeping_workers.py` looks up too. The body names
    # every schema, even for operators, because the caller's search_path cannot be trusted. Setting a search_path for the function
    # would cost each enqueue more than reading the sleepers. If the tables have moved to another schema, the sleepers are looked up
    # each time, and notified of every queue.
    # The function first checks whether any worker sleeps: usually none does, and a check by queue takes three times as long.
    # To prove that it is notified, a listener inserts no rows with the setting `proof` and a word, and waits for that word.
    op.execute(
        """
        DO $do$ BEGIN EXECUTE format($create$
        CREATE FUNCTION outboxq_notify() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
        DECLARE
            notify pg_catalog.text := pg_catalog.current_setting('outboxq.notify', true);
            proves boolean := coalesce(notify OPERATOR(pg_catalog.^@) 'proof ', false);
            always boolean := proves OR coalesce(notify OPERATOR(pg_catalog.=) 'always', false)
                OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed';
            channel pg_catalog.text;
        BEGIN
            IF notify OPERATOR(pg_catalog.=) 'off' THEN
                RETURN NULL;
            ELSIF always THEN
                NULL;
            ELSIF TG_TABLE_SCHEMA OPERATOR(pg_catalog.=) %1$L THEN
                IF NOT EXISTS (
                    SELECT FROM %1$I.sleeping_workers AS sleeper
                    WHERE sleeper.wakes_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
                ) THEN
                    RETURN NULL;
                END IF;
            ELSE
                EXECUTE pg_catalog.format(
                    'SELECT EXISTS (SELECT FROM %%I.sleeping_workers AS sleeper '
                    'WHERE sleeper.wakes_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp())', TG_TABLE_SCHEMA
                ) INTO always;
                IF NOT always THEN
                    RETURN NULL;
                END IF;
            END IF;
            channel := CASE WHEN TG_TABLE_SCHEMA OPERATOR(pg_catalog.=) 'public' THEN 'task_ready'
                ELSE pg_catalog.concat('task_ready_', TG_TABLE_SCHEMA)::pg_catalog.name END;
            IF proves THEN
                PERFORM pg_catalog.pg_notify(channel, notify);
            ELSIF always THEN
                PERFORM pg_catalog.pg_notify(channel, pg_catalog.concat('* ', due.queue))
                FROM (SELECT DISTINCT queue FROM inserted) AS due;
            ELSE
                PERFORM pg_catalog.pg_notify(channel, pg_catalog.concat(CASE WHEN due.later
                    THEN pg_catalog.concat('@', pg_catalog.date_part('epoch', due.available_at))
                    ELSE coalesce((
                        SELECT pg_catalog.concat(due.tasks, ',', pg_catalog.txid_current(), ',',
                            pg_catalog.string_agg(called.session::pg_catalog.text, ',' ORDER BY called.turn))
                        FROM (
                            SELECT in_turn.session, in_turn.turn
                            FROM (
                                SELECT sleeper.session,
                                    pg_catalog.hashint8extended(sleeper.session, pg_catalog.txid_current()) AS turn
                                FROM %1$I.sleeping_workers AS sleeper
                                WHERE sleeper.queue OPERATOR(pg_catalog.=) ANY (ARRAY[due.queue, ''])
                                AND sleeper.session IS NOT NULL
                                AND sleeper.wakes_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
                                ORDER BY turn LIMIT 32
                            ) AS in_turn
                            WHERE NOT pg_catalog.pg_try_advisory_xact_lock_shared(in_turn.session)
                            LIMIT due.tasks OPERATOR(pg_catalog.+) 1
                        ) AS called
                        HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
                    ), '*') END, ' ', due.queue))
                FROM (
                    SELECT queue, later, least(pg_catalog.count(*), 16) AS tasks, pg_catalog.min(available_at) AS available_at
                    FROM (
                        SELECT queue, available_at,
                            available_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() AS later FROM inserted
                    ) AS entry GROUP BY queue, later
                ) AS due
                WHERE EXISTS (
                    SELECT FROM %1$I.sleeping_workers AS sleeper
                    WHERE sleeper.queue OPERATOR(pg_catalog.=) ANY (ARRAY[due.queue, ''])
                    AND sleeper.wakes_at OPERATOR(pg_catalog.>) greatest(due.available_at, pg_catalog.clock_timestamp())
                );
            END IF;
            RETURN NULL;
        END
        $$
        $create$, current_schema()); END $do$
        """
    )
    op.execute("REVOKE ALL ON FUNCTION outboxq_notify() FROM PUBLIC")
    op.execute(
        "CREATE TRIGGER task_outbox_notify AFTER INSERT ON task_outbox REFERENCING NEW TABLE AS inserted "
        "FOR EACH STATEMENT EXECUTE FUNCTION outboxq_notify()"
    )


def _enqueue_function() -> None:
    """Create `Task.enqueue` for programs in any language, in their own transaction: the same rows, defaults and checks.

    The function runs with the privileges of its caller. Each of its statements sees earlier commits (VOLATILE), so that a call that waited
    for a key reads the key's current task. The session keeps its plans, which may be made while the tables are empty, so they avoid
    sequential scans.
    """
    op.execute(
        """
        DO $do$ BEGIN EXECUTE format($create$
        CREATE FUNCTION outboxq_enqueue(
            task_name text,
            args jsonb DEFAULT '{}',
            queue text DEFAULT 'default',
            priority integer DEFAULT 0,
            available_at timestamptz DEFAULT NULL,
            partition_key text DEFAULT NULL,
            idempotency_key text DEFAULT NULL,
            expires_at timestamptz DEFAULT NULL,
            max_attempts integer DEFAULT NULL,
            lease interval DEFAULT '60 seconds',
            timeout interval DEFAULT NULL,
            on_dead_letter text DEFAULT 'release',
            unique_for interval DEFAULT NULL,
            unique_until_finished boolean DEFAULT false,
            pipeline_execution_id uuid DEFAULT NULL,
            headers jsonb DEFAULT NULL
        ) RETURNS uuid LANGUAGE plpgsql VOLATILE
        SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
        #variable_conflict use_variable
        DECLARE
            earliest CONSTANT timestamptz := '1970-01-01 00:00:00+00';
            latest CONSTANT timestamptz := '9001-01-01 00:00:00+00';
            shortest CONSTANT numeric := 0.000001;
            longest CONSTANT numeric := 36500 * 86400::bigint;
            moment timestamptz;
            ticks bigint;
            id uuid;
            holder uuid;
            is_free boolean;
            is_letter boolean;
            complaint text;
            place bigint;
        BEGIN
            args := coalesce(args, '{}');
            queue := coalesce(queue, 'default');
            priority := coalesce(priority, 0);
            lease := coalesce(lease, '60 seconds');
            on_dead_letter := coalesce(on_dead_letter, 'release');
            unique_until_finished := coalesce(unique_until_finished, false);
            complaint := CASE
                WHEN task_name IS NULL OR length(task_name) NOT BETWEEN 1 AND 200
                    THEN 'task_name must be 1 to 200 characters long'
                WHEN jsonb_typeof(args) <> 'object'
                    THEN 'args must be a JSON object with a member for each parameter of the task, not '
                        || jsonb_typeof(args)
                WHEN octet_length(args::text) > 262144
                    THEN 'args must be at most 262144 bytes of JSON; store the document elsewhere and pass its key'
                WHEN length(queue) NOT BETWEEN 1 AND 200 THEN 'queue must be 1 to 200 characters long'
                WHEN length(partition_key) NOT BETWEEN 1 AND 200
                    THEN 'partition_key must be 1 to 200 characters long'
                WHEN length(idempotency_key) NOT BETWEEN 1 AND 200
                    THEN 'idempotency_key must be 1 to 200 characters long'
                WHEN priority NOT BETWEEN -100 AND 100 THEN 'priority must be from -100 to 100, not ' || priority
                WHEN max_attempts NOT BETWEEN 1 AND 2147483646
                    THEN 'max_attempts must be from 1 to 2147483646, not ' || max_attempts
                WHEN extract(epoch FROM lease) NOT BETWEEN shortest AND longest
                    THEN 'lease must be positive and at most 100 years'
                WHEN extract(epoch FROM timeout) NOT BETWEEN shortest AND longest
                    THEN 'timeout must be positive and at most 100 years'
                WHEN available_at < earliest OR available_at >= latest
                    THEN 'available_at must be between the years 1970 and 9000'
                WHEN expires_at < earliest OR expires_at >= latest
                    THEN 'expires_at must be between the years 1970 and 9000'
                WHEN on_dead_letter NOT IN ('release', 'hold')
                    THEN 'on_dead_letter must be release or hold, not ' || quote_literal(on_dead_letter)
                WHEN on_dead_letter = 'hold' AND (partition_key IS NULL OR starts_with(partition_key, 'concurrency:'))
                    THEN 'on_dead_letter => ''hold'' needs a partition_key that is not a concurrency key'
                WHEN extract(epoch FROM unique_for) NOT BETWEEN shortest AND longest
                    THEN 'unique_for must be positive and at most 100 years'
                WHEN idempotency_key IS NULL AND (unique_for IS NOT NULL OR unique_until_finished)
                    THEN 'unique_for and unique_until_finished need an idempotency_key'
            END;
            IF complaint IS NULL AND headers IS NOT NULL THEN
                complaint := CASE
                    WHEN jsonb_typeof(headers) <> 'object'
                        THEN 'headers must be a JSON object whose values are strings, not ' || jsonb_typeof(headers)
                    WHEN octet_length(headers::text) > 8192 THEN 'headers must be at most 8192 bytes of JSON'
                    ELSE (
                        SELECT CASE
                            WHEN length(one.key) NOT BETWEEN 1 AND 100
                                THEN 'a header''s name must be 1 to 100 characters long'
                            WHEN jsonb_typeof(one.value) <> 'string'
                                THEN 'the header ' || quote_literal(one.key) || ' must be a string, not '
                                    || jsonb_typeof(one.value)
                            ELSE 'the header ' || quote_literal(one.key) || ' has a reserved name: outboxq-…'
                        END
                        FROM jsonb_each(headers) AS one
                        WHERE length(one.key) NOT BETWEEN 1 AND 100 OR jsonb_typeof(one.value) <> 'string'
                            OR lower(one.key) LIKE 'outboxq-%%'
                        ORDER BY one.key LIMIT 1
                    )
                END;
            END IF;
            IF complaint IS NOT NULL THEN
                RAISE invalid_parameter_value USING
                    MESSAGE = 'outboxq_enqueue of task ' || coalesce(quote_literal(task_name), 'NULL') || ': ' || complaint;
            END IF;
            LOOP
                moment := clock_timestamp();
                -- Version 7: 48 bits of milliseconds, 12 of a fraction of one, and 62 random ones behind the variant.
                ticks := floor(extract(epoch FROM moment) * 4096000);
                id := (
                    lpad(to_hex(ticks / 4096), 12, '0') || '7' || lpad(to_hex(ticks %% 4096), 3, '0')
                    || right(replace(gen_random_uuid()::text, '-', ''), 16)
                )::uuid;
                EXIT WHEN idempotency_key IS NULL;
                INSERT INTO %1$I.idempotency_keys (scope, key, task_execution_id, expires_at, until_finished, created_at)
                VALUES (task_name, idempotency_key, id, moment + unique_for, unique_until_finished, moment)
                ON CONFLICT DO NOTHING;
                EXIT WHEN FOUND;
                SELECT
                    held.task_execution_id,
                    coalesce(held.expires_at <= moment, false) OR task.id IS NULL
                        OR held.until_finished AND task.status IN ('Completed', 'Failed', 'Cancelled'),
                    held.until_finished AND task.status = 'Failed'
                INTO holder, is_free, is_letter
                FROM %1$I.idempotency_keys AS held
                LEFT JOIN %1$I.task_executions AS task ON task.id = held.task_execution_id
                WHERE held.scope = task_name AND held.key = idempotency_key;
                CONTINUE WHEN NOT FOUND;
                IF NOT is_free THEN
                    RETURN holder;
                END IF;
                -- Whoever runs the holder again by hand locks its key before; the next statement sees what this one waited for.
                PERFORM 1 FROM %1$I.idempotency_keys AS held
                WHERE held.scope = task_name AND held.key = idempotency_key AND held.task_execution_id = holder
                FOR UPDATE;
                UPDATE %1$I.idempotency_keys AS held
                SET task_execution_id = id, expires_at = moment + unique_for, until_finished = unique_until_finished,
                    created_at = moment
                WHERE held.scope = task_name AND held.key = idempotency_key AND held.task_execution_id = holder
                    AND (held.expires_at <= moment OR NOT EXISTS (
                        SELECT FROM %1$I.task_executions AS task
                        WHERE task.id = holder AND task.status IN ('Ready', 'Running')
                    ));
                CONTINUE WHEN NOT FOUND;
                IF is_letter THEN
                    UPDATE %1$I.dead_letters AS letter SET lost_key = idempotency_key
                    WHERE letter.task_execution_id = holder;
                END IF;
                EXIT;
            END LOOP;
            available_at := coalesce(available_at, moment);
            WITH entry AS (
                INSERT INTO %1$I.task_outbox
                    (task_execution_id, queue, priority, partition_key, position, available_at, expires_at, created_at)
                VALUES
                    (id, queue, priority, partition_key, nextval(%2$L), available_at, expires_at, moment)
                RETURNING task_outbox.position
            )
            INSERT INTO %1$I.task_executions (
                id, pipeline_execution_id, task_name, queue, partition_key, position, priority, args, status, attempt,
                max_attempts, recovery_attempts, lease_seconds, timeout_seconds, lease_token, on_dead_letter, expires_at,
                created_at, updated_at, headers
            )
            SELECT
                id, coalesce(pipeline_execution_id, id), task_name, queue, partition_key, entry.position, priority,
                args::text, 'Ready', 1, max_attempts, 0, extract(epoch FROM lease), extract(epoch FROM timeout), 0,
                on_dead_letter, expires_at, moment, moment, nullif(headers, '{}')::text
            FROM entry
            RETURNING task_executions.position INTO place;
            INSERT INTO %1$I.execution_events
                (pipeline_execution_id, task_execution_id, event_type, event_data, created_at)
            VALUES (
                coalesce(pipeline_execution_id, id), id, 'task_created',
                jsonb_strip_nulls(jsonb_build_object(
                    'available_at', available_at,
                    'position', CASE WHEN partition_key IS NOT NULL THEN place END,
                    'idempotency_key', idempotency_key,
                    'unique_until', moment + unique_for,
                    'unique_until_finished', CASE WHEN unique_until_finished THEN true END
                ))::text, moment
            );
            RETURN id;
        END
        $$
        $create$, current_schema(), format('%I.task_position', current_schema())); END $do$
        """
    )


def _backlog_function() -> None:
    """Create the function that returns the load of a queue, in columns that stay the same when the tables change.

    Its cost does not depend on the number of tasks. It counts at most 10 000 due entries, by the indexes that claims use: one range
    for each priority without keys, and one for all keys. No index has the time of a claim. So it counts the starts in two ways and
    takes the greater count, since neither is too high. The newest 10 000 events are exact up to some 50 tasks a second, even if no
    worker writes statistics. Above that, the workers' own counts are exact: seven rows for each worker and task, up to 10 s late. A
    role that may not read them gets the first count.

    Claims and counts in the future are ignored: they were written before the clock was set back.

    The function runs with the privileges of its caller. The session keeps its plans, which may be made while the tables are empty, so
    they avoid sequential scans.
    """
    attempts = " + ".join(f"metrics.wait_{bucket}" for bucket in range(BUCKETS))
    op.execute(
        f"""
        DO $do$ BEGIN EXECUTE format($create$
        CREATE FUNCTION outboxq_backlog(
            queue text,
            OUT due bigint,
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
                    MESSAGE = 'outboxq_backlog() requires the name of a queue, not NULL';
            END IF;
            due := 0;
            LOOP
                SELECT entry.priority INTO level FROM %1$I.task_outbox AS entry
                WHERE entry.queue = queue AND entry.partition_key IS NULL AND entry.priority > level
                ORDER BY entry.priority LIMIT 1;
                EXIT WHEN NOT FOUND;
                SELECT count(*), min(counted.available_at) INTO due_now, due_since
                FROM (
                    SELECT entry.available_at FROM %1$I.task_outbox AS entry
                    WHERE entry.queue = queue AND entry.partition_key IS NULL AND entry.priority = level
                        AND entry.available_at <= moment
                    ORDER BY entry.available_at LIMIT greatest(1, most - due)
                ) AS counted;
                due := due + due_now;
                oldest := least(oldest, due_since);
            END LOOP;
            SELECT count(*), min(counted.available_at) INTO due_now, due_since
            FROM (
                SELECT entry.available_at FROM %1$I.task_outbox AS entry
                WHERE entry.queue = queue AND entry.partition_key IS NOT NULL AND entry.available_at <= moment
                ORDER BY entry.available_at LIMIT greatest(1, most - due)
            ) AS counted;
            due := least(most, due + due_now);
            oldest := least(oldest, due_since);
            oldest_seconds := coalesce(extract(epoch FROM moment - oldest), 0);
            started_last_minute := 0;
            LOOP
                SELECT
                    count(*), count(*) FILTER (WHERE newest.created_at >= since), min(newest.sequence_num),
                    count(*) FILTER (
                        WHERE newest.event_type = 'task_claimed' AND newest.created_at BETWEEN since AND moment AND queue = (
                            SELECT task.queue FROM %1$I.task_executions AS task WHERE task.id = newest.task_execution_id
                        )
                    )
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
                WHERE metrics.at BETWEEN since - interval '10 seconds' AND moment AND metrics.queue = queue;
            END IF;
            SELECT count(*) INTO running
            FROM (SELECT FROM %1$I.task_leases AS lease WHERE lease.queue = queue LIMIT most) AS leased;
        END
        $$
        $create$, current_schema(), format('%I.task_metrics', current_schema())); END $do$
        """  # noqa: S608 - the names of columns
    )


def _is_postgresql() -> bool:
    return context.get_context().dialect.name == "postgresql"


def _xact_id() -> sa.Column[Any]:
    """Return the column for the transaction that wrote a row; SQLite leaves it empty."""
    if _is_postgresql():
        return sa.Column("xact_id", Named("xid8"), server_default=sa.text("pg_current_xact_id()"))
    return sa.Column("xact_id", sa.Integer())


def _store(table: str, parameters: dict[str, int]) -> None:
    """Set PostgreSQL's storage parameters. (SQLAlchemy supports them in CREATE TABLE only from 2.1 on.)"""
    if _is_postgresql():
        words = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        op.execute(f"ALTER TABLE {table} SET ({words})")


def _checks(table: str) -> list[sa.CheckConstraint]:
    conditions = dict(CHECKS.get(table, {}))
    if not _is_postgresql():
        conditions |= SQLITE_CHECKS.get(table, {})
    return [sa.CheckConstraint(text, name=op.f(f"ck_{table}_{name}")) for name, text in conditions.items()]


def _partial_index(name: str, table: str, columns: list[Any], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where))


BATCHES_ON_POSTGRESQL = (
    # The ends of a transaction are collected as rows, and counted when it commits: in the order of the batches, so that two
    # transactions never deadlock, and as late as possible, because the row of a batch is locked from then on. The functions run
    # as their owner, so that a role that ends tasks needs no right on the batches.
    """
    DO $do$ BEGIN EXECUTE format($create$
    CREATE FUNCTION outboxq_note_end() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        now_completed integer := (NEW.status = 'Completed')::integer;
        now_failed integer := (NEW.status = 'Failed')::integer - (OLD.status = 'Failed')::integer;
        now_cancelled integer := (NEW.status = 'Cancelled')::integer;
    BEGIN
        IF NEW.status <> OLD.status AND (now_completed, now_failed, now_cancelled) <> (0, 0, 0)
            AND get_byte(uuid_send(OLD.pipeline_execution_id), 6) BETWEEN 128 AND 143
        THEN
            INSERT INTO %1$I.task_batch_changes (batch_id, added, completed, failed, cancelled, closes, changed_at)
            VALUES (OLD.pipeline_execution_id, 0, now_completed, now_failed, now_cancelled, false, NEW.updated_at);
        END IF;
        RETURN NULL;
    END
    $$
    $create$, current_schema()); END $do$
    """,
    """
    DO $do$ BEGIN EXECUTE format($create$
    CREATE FUNCTION outboxq_count_ends() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        change record;
    BEGIN
        IF NOT EXISTS (SELECT FROM %1$I.task_batch_changes AS noted WHERE noted.id = NEW.id) THEN
            RETURN NULL; -- counted with an earlier one: to look for others would read all that are deleted, once for each
        END IF;
        FOR change IN
            WITH mine AS (
                DELETE FROM %1$I.task_batch_changes AS noted WHERE noted.xact_id = pg_current_xact_id() RETURNING noted.*
            )
            SELECT
                mine.batch_id, sum(mine.added) AS added, sum(mine.completed) AS completed, sum(mine.failed) AS failed,
                sum(mine.cancelled) AS cancelled, bool_or(mine.closes) AS closes, max(mine.changed_at) AS changed_at
            FROM mine GROUP BY mine.batch_id ORDER BY mine.batch_id
        LOOP
            UPDATE %1$I.task_batches AS batch SET -- a forged count at its limit does not stop the end of a task
                size = least(batch.size + change.added, 2147483647),
                completed = least(batch.completed + change.completed, 2147483647),
                failed = least(batch.failed + change.failed, 2147483647),
                cancelled = least(batch.cancelled + change.cancelled, 2147483647),
                closed = batch.closed OR change.closes,
                cancel_requested_at = CASE
                    WHEN change.failed > 0 AND batch.on_failed = 'cancel'
                    THEN coalesce(batch.cancel_requested_at, change.changed_at) ELSE batch.cancel_requested_at
                END,
                updated_at = greatest(batch.updated_at, change.changed_at)
            WHERE batch.id = change.batch_id AND batch.completed_at IS NULL;
            IF NOT FOUND AND change.added > 0 THEN
                RAISE object_not_in_prerequisite_state USING
                    MESSAGE = 'outboxq: batch ' || change.batch_id || ' has completed and takes no more tasks';
            END IF;
        END LOOP;
        RETURN NULL;
    END
    $$
    $create$, current_schema()); END $do$
    """,
    """
    DO $do$ BEGIN EXECUTE format($create$
    CREATE FUNCTION outboxq_advance_batch() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        links integer := coalesce(jsonb_array_length(NEW.then_tasks::jsonb), 0);
        goes_on boolean := NEW.runs_then AND NEW.stage < links
            AND (NEW.kind <> 'chain' OR NEW.failed = 0 AND NEW.cancelled = 0);
        ends boolean := NOT goes_on OR NEW.stage + 1 = links;
        link jsonb;
        moment timestamptz := NEW.updated_at;
        due timestamptz;
        expiry timestamptz;
        place bigint;
    BEGIN
        IF goes_on THEN
            link := NEW.then_tasks::jsonb -> NEW.stage;
            due := moment + (link ->> 'delay_seconds')::float8 * interval '1 second';
            expiry := moment + (link ->> 'expires_seconds')::float8 * interval '1 second';
            place := nextval(%2$L);
            INSERT INTO %1$I.task_outbox
                (task_execution_id, queue, priority, partition_key, position, available_at, expires_at, created_at)
            VALUES (
                (link ->> 'id')::uuid, link ->> 'queue', (link ->> 'priority')::smallint, link ->> 'partition_key', place,
                due, expiry, moment
            );
            INSERT INTO %1$I.task_executions (
                id, pipeline_execution_id, task_name, queue, partition_key, position, priority, args, headers, status, attempt,
                max_attempts, recovery_attempts, lease_seconds, timeout_seconds, lease_token, on_dead_letter, expires_at,
                created_at, updated_at
            ) VALUES (
                (link ->> 'id')::uuid, NEW.id, link ->> 'task_name', link ->> 'queue', link ->> 'partition_key', place,
                (link ->> 'priority')::smallint, link ->> 'args', link ->> 'headers', 'Ready', 1,
                (link ->> 'max_attempts')::integer, 0, (link ->> 'lease_seconds')::float8,
                (link ->> 'timeout_seconds')::float8, 0, link ->> 'on_dead_letter', expiry, moment, moment
            );
            INSERT INTO %1$I.execution_events
                (pipeline_execution_id, task_execution_id, event_type, event_data, created_at)
            VALUES (
                NEW.id, (link ->> 'id')::uuid, 'task_created',
                jsonb_strip_nulls(jsonb_build_object(
                    'available_at', due, 'position', CASE WHEN link ->> 'partition_key' IS NOT NULL THEN place END
                ))::text, moment
            );
        END IF;
        UPDATE %1$I.task_batches AS batch SET
            stage = NEW.stage + goes_on::integer,
            size = least(NEW.size::bigint + (NOT ends)::integer, 2147483647),
            completed_at = CASE WHEN ends THEN moment END
        WHERE batch.id = NEW.id;
        IF ends THEN
            INSERT INTO %1$I.execution_events (pipeline_execution_id, event_type, event_data, created_at)
            VALUES (
                NEW.id, 'batch_completed',
                jsonb_strip_nulls(jsonb_build_object(
                    'size', NEW.size, 'completed', NEW.completed, 'failed', NEW.failed, 'cancelled', NEW.cancelled,
                    'then', link ->> 'id'
                ))::text, moment
            );
        END IF;
        RETURN NULL;
    END
    $$
    $create$, current_schema(), format('%I.task_position', current_schema())); END $do$
    """,
    "REVOKE ALL ON FUNCTION outboxq_note_end(), outboxq_count_ends(), outboxq_advance_batch() FROM PUBLIC",
    """
    CREATE TRIGGER task_batches_advance AFTER UPDATE OF size, completed, failed, cancelled, closed, runs_then ON task_batches
    FOR EACH ROW WHEN (
        NEW.completed_at IS NULL AND NEW.closed AND NEW.size <= NEW.completed::bigint + NEW.cancelled
            + CASE WHEN NEW.on_failed = 'wait' THEN 0 ELSE NEW.failed END
    ) EXECUTE FUNCTION outboxq_advance_batch()
    """,
    """
    CREATE CONSTRAINT TRIGGER task_batch_changes_count AFTER INSERT ON task_batch_changes DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION outboxq_count_ends()
    """,
    """
    CREATE TRIGGER task_executions_batch AFTER UPDATE OF status ON task_executions
    FOR EACH ROW WHEN (OLD.pipeline_execution_id >= '80000000-0000-0000-0000-000000000000')
    EXECUTE FUNCTION outboxq_note_end()
    """,
)


def _later(seconds: str) -> str:
    """Return SQLite's expression for a number of seconds after the change, exact to the microsecond."""
    micros = (
        "(CAST(strftime('%s', substr(NEW.updated_at, 1, 19)) AS INTEGER) * 1000000 "
        f"+ CAST(substr(NEW.updated_at, 21, 6) AS INTEGER) + CAST(round({seconds} * 1000000) AS INTEGER))"
    )
    return (
        f"strftime('%Y-%m-%dT%H:%M:%S', {micros} / 1000000, 'unixepoch') || printf('.%06d+00:00', {micros} % 1000000)"
    )


def _link(member: str) -> str:
    return f"json_extract(NEW.then_tasks, '$[' || NEW.stage || '].{member}')"


_LINKS = "coalesce(json_array_length(NEW.then_tasks), 0)"
_GOES_ON = f"(NEW.runs_then AND NEW.stage < {_LINKS} AND (NEW.kind <> 'chain' OR NEW.failed = 0 AND NEW.cancelled = 0))"
_ENDS = f"(NOT {_GOES_ON} OR NEW.stage + 1 = {_LINKS})"
_DUE, _EXPIRY = _later(_link("delay_seconds")), _later(_link("expires_seconds"))
_PLACE = f"(SELECT position FROM task_outbox WHERE task_execution_id = {_link('id')})"  # noqa: S608 - words of our own

BATCHES_ON_SQLITE = (
    f"""
    CREATE TRIGGER task_batches_advance AFTER UPDATE OF size, completed, failed, cancelled, closed, runs_then ON task_batches
    WHEN NEW.completed_at IS NULL AND NEW.closed AND NEW.size <= NEW.completed + NEW.cancelled
        + CASE WHEN NEW.on_failed = 'wait' THEN 0 ELSE NEW.failed END
    BEGIN
        INSERT INTO task_outbox
            (task_execution_id, queue, priority, partition_key, position, available_at, expires_at, created_at)
        SELECT
            {_link("id")}, {_link("queue")}, {_link("priority")}, {_link("partition_key")},
            coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'task_outbox'), 0) + 1, {_DUE}, {_EXPIRY}, NEW.updated_at
        WHERE {_GOES_ON};
        INSERT INTO task_executions (
            id, pipeline_execution_id, task_name, queue, partition_key, position, priority, args, headers, status, attempt,
            max_attempts, recovery_attempts, lease_seconds, timeout_seconds, lease_token, on_dead_letter, expires_at,
            created_at, updated_at
        )
        SELECT
            {_link("id")}, NEW.id, {_link("task_name")}, {_link("queue")}, {_link("partition_key")}, {_PLACE},
            {_link("priority")}, {_link("args")}, {_link("headers")}, 'Ready', 1, {_link("max_attempts")}, 0,
            {_link("lease_seconds")}, {_link("timeout_seconds")}, 0, {_link("on_dead_letter")}, {_EXPIRY}, NEW.updated_at,
            NEW.updated_at
        WHERE {_GOES_ON};
        INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, event_data, created_at)
        SELECT
            NEW.id, {_link("id")}, 'task_created',
            json_patch('{{}}', json_object(
                'available_at', {_DUE}, 'position', CASE WHEN {_link("partition_key")} IS NOT NULL THEN {_PLACE} END
            )),
            NEW.updated_at
        WHERE {_GOES_ON};
        INSERT INTO execution_events (pipeline_execution_id, event_type, event_data, created_at)
        SELECT
            NEW.id, 'batch_completed',
            json_patch('{{}}', json_object(
                'size', NEW.size, 'completed', NEW.completed, 'failed', NEW.failed, 'cancelled', NEW.cancelled,
                'then', CASE WHEN {_GOES_ON} THEN {_link("id")} END
            )),
            NEW.updated_at
        WHERE {_ENDS};
        UPDATE task_batches SET
            stage = NEW.stage + {_GOES_ON},
            size = NEW.size + NOT {_ENDS},
            completed_at = CASE WHEN {_ENDS} THEN NEW.updated_at END
        WHERE id = NEW.id;
    END
    """,  # noqa: S608 - words of our own
    """
    CREATE TRIGGER task_executions_batch AFTER UPDATE OF status ON task_executions
    WHEN OLD.pipeline_execution_id >= '8' AND substr(OLD.pipeline_execution_id, 13, 1) = '8' AND NEW.status <> OLD.status
        AND (NEW.status IN ('Completed', 'Failed', 'Cancelled') OR OLD.status = 'Failed')
    BEGIN
        UPDATE task_batches SET
            completed = completed + (NEW.status = 'Completed'),
            failed = failed + (NEW.status = 'Failed') - (OLD.status = 'Failed'),
            cancelled = cancelled + (NEW.status = 'Cancelled'),
            cancel_requested_at = CASE
                WHEN NEW.status = 'Failed' AND on_failed = 'cancel' THEN coalesce(cancel_requested_at, NEW.updated_at)
                ELSE cancel_requested_at
            END,
            updated_at = max(updated_at, NEW.updated_at)
        WHERE id = OLD.pipeline_execution_id AND completed_at IS NULL;
    END
    """,
    """
    CREATE TRIGGER task_batch_changes_count AFTER INSERT ON task_batch_changes
    BEGIN
        UPDATE task_batches SET
            size = size + NEW.added,
            closed = closed OR NEW.closes,
            updated_at = max(updated_at, NEW.changed_at)
        WHERE id = NEW.batch_id AND completed_at IS NULL;
        DELETE FROM task_batch_changes WHERE id = NEW.id;
    END
    """,
)
