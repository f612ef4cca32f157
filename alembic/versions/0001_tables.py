"""The tables, and the trigger that wakes workers on PostgreSQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

instant = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# Small tables whose rows come and go: vacuum them by count, at full speed.
RESTLESS = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_vacuum_cost_delay": 0,
}


class Xid8(sa.types.UserDefinedType[int]):
    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


def upgrade() -> None:
    postgresql = context.get_context().dialect.name == "postgresql"
    if postgresql:
        op.execute("CREATE SEQUENCE task_position")
    _task_executions()
    _task_outbox()
    _task_leases()
    _execution_events(postgresql=postgresql)
    _helpers()
    if postgresql:
        _trigger()


def downgrade() -> None:
    postgresql = context.get_context().dialect.name == "postgresql"
    if postgresql:
        op.execute("DROP TRIGGER task_outbox_notify ON task_outbox")
        op.execute("DROP FUNCTION outboxq_notify()")
    for table in (
        "sleeping_workers",
        "workers",
        "queue_settings",
        "task_subscriptions",
        "partition_claims",
        "idempotency_keys",
        "dead_letters",
        "execution_events",
        "task_leases",
        "task_outbox",
        "task_executions",
    ):
        op.drop_table(table)
    if postgresql:
        op.execute("DROP SEQUENCE task_position")


def _task_executions() -> None:
    op.create_table(
        "task_executions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("pipeline_execution_id", sa.Uuid(), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text()),
        sa.Column("partition_key", sa.Text()),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("headers", sa.Text()),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer()),
        sa.Column("recovery_attempts", sa.Integer(), nullable=False),
        sa.Column("lease_seconds", sa.Double(), nullable=False),
        sa.Column("timeout_seconds", sa.Double()),
        sa.Column("lease_token", sa.BigInteger(), nullable=False),
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
        _check("status", "status IN ('Ready', 'Running', 'Completed', 'Failed', 'Cancelled')"),
        _check("priority", "priority BETWEEN -100 AND 100"),
        _check("attempt", "attempt >= 1"),
        _check("max_attempts", "max_attempts >= 1"),
        _check("counters", "recovery_attempts >= 0 AND lease_token >= 0"),
        _check("lease_seconds", "lease_seconds > 0"),
        _check("timeout_seconds", "timeout_seconds > 0"),
        _check("on_dead_letter", "on_dead_letter IN ('release', 'hold')"),
        _check("running_has_worker", "(status = 'Running') = (worker_id IS NOT NULL)"),
        _check(
            "ended_has_completed_at",
            "(status IN ('Completed', 'Failed', 'Cancelled')) = (completed_at IS NOT NULL)",
        ),
        postgresql_with={"fillfactor": 50},
    )
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
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("event_type", sa.Text()),
        sa.Column("available_at", instant, nullable=False),
        sa.Column("expires_at", instant),
        sa.Column("created_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_task_outbox"),
        sa.UniqueConstraint("task_execution_id", name="uq_task_outbox_task_execution_id"),
        sqlite_autoincrement=True,
        postgresql_with=RESTLESS,
    )
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
        sa.Column("lease_token", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("lease_expires_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("task_execution_id", name="pk_task_leases"),
        postgresql_with={"fillfactor": 50, **RESTLESS},
    )


def _execution_events(*, postgresql: bool) -> None:
    xact_id = (
        sa.Column("xact_id", Xid8(), server_default=sa.text("pg_current_xact_id()"))
        if postgresql
        else sa.Column("xact_id", sa.Integer())
    )
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
        xact_id,
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
        sa.Column("event_type", sa.Text()),
        sa.Column("partition_key", sa.Text()),
        sa.Column("exception", sa.Text()),
        sa.Column("failed_at", instant, nullable=False),
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
        postgresql_with=RESTLESS,
    )
    op.create_table(
        "task_subscriptions",
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("parameter", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("max_attempts", sa.Integer()),
        sa.Column("lease_seconds", sa.Double(), nullable=False),
        sa.Column("timeout_seconds", sa.Double()),
        sa.Column("on_dead_letter", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("event_type", "task_name", name="pk_task_subscriptions"),
    )
    op.create_table(
        "queue_settings",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("paused_at", instant),
        sa.Column("concurrency_limit", sa.Integer()),
        sa.Column("rate_limit", sa.Integer()),
        sa.Column("rate_seconds", sa.Double()),
        sa.Column("rate_full_at", instant),
        sa.Column("fair", sa.Boolean(), nullable=False),
        sa.Column("updated_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("queue", name="pk_queue_settings"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("queues", sa.Text()),
        sa.Column("event_types", sa.Text()),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("task_names", sa.Text(), nullable=False),
        sa.Column("started_at", instant, nullable=False),
        sa.Column("last_seen_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "sleeping_workers",
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("wakes_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "queue", name="pk_sleeping_workers"),
        postgresql_with={"fillfactor": 50, **RESTLESS},
    )
    op.create_index("ix_sleeping_workers_queue", "sleeping_workers", ["queue"])


def _trigger() -> None:
    """One notification per queue and statement, its payload the queue's name; never data, and only where somebody sleeps.

    NOTIFY takes a lock at commit that all notifying commits share, so a busy system must not notify (`store/sleeping.py` has
    the proof that no wake-up is lost). A snapshot older than the statement may not see who fell asleep: above READ COMMITTED
    every enqueue notifies. `outboxq.notify` may be set, for a transaction, a role or a database: `always`; or `off`, for a
    transaction that has notified cannot be prepared (two-phase commit). The function is VOLATILE, so that its look at the
    sleepers is newer than the insert; the proof rests on that.
    """
    # In whichever schema the tables are made; the body names it, for the caller's search_path is not to be trusted.
    op.execute(
        """
        DO $do$ BEGIN EXECUTE format($create$
        CREATE FUNCTION outboxq_notify() RETURNS trigger LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
        DECLARE
            notify text := current_setting('outboxq.notify', true);
        BEGIN
            IF notify IS DISTINCT FROM 'off' THEN
                PERFORM pg_notify(TG_ARGV[0], due.queue)
                FROM (SELECT queue, min(available_at) AS available_at FROM inserted GROUP BY queue) AS due
                WHERE notify = 'always' OR current_setting('transaction_isolation') <> 'read committed' OR EXISTS (
                    SELECT FROM %I.sleeping_workers AS sleeper
                    WHERE sleeper.queue IN (due.queue, '')
                    AND sleeper.wakes_at > greatest(due.available_at, clock_timestamp())
                );
            END IF;
            RETURN NULL;
        END
        $$
        $create$, current_schema()); END $do$
        """
    )
    op.execute("REVOKE ALL ON FUNCTION outboxq_notify() FROM PUBLIC")
    schema = context.config.attributes.get("schema")
    channel = f"task_ready_{schema}" if schema else "task_ready"
    op.execute(
        "CREATE TRIGGER task_outbox_notify AFTER INSERT ON task_outbox REFERENCING NEW TABLE AS inserted "
        f"FOR EACH STATEMENT EXECUTE FUNCTION outboxq_notify('{channel}')"
    )


def _check(name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_task_executions_{name}"))


def _partial_index(name: str, table: str, columns: list[Any], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
