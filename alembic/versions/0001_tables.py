"""The tables, and on PostgreSQL the trigger that wakes workers and the function that enqueues from SQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class Bounded(sa.types.UserDefinedType[Any]):
    """One of `DOMAINS`."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        return self.name


# What a claim, a recovery, an end or a wait computes with is bounded, so that a row written by SQL cannot stop them all. On
# PostgreSQL by types: a CHECK of a table is parsed anew for each statement that writes a row, and these would make an enqueue
# 13 % slower; a type's is kept. Hence also one CHECK for what belongs together, and no IN, which is a cast and an array.
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
instant = Bounded("outboxq_instant").with_variant(sa.Text(), "sqlite")
moment = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
"""An instant that only the database compares."""
seconds = Bounded("outboxq_seconds").with_variant(sa.Double(), "sqlite")
attempts = Bounded("outboxq_attempts").with_variant(sa.Integer(), "sqlite")
recoveries = Bounded("outboxq_recoveries").with_variant(sa.Integer(), "sqlite")
number = Bounded("outboxq_number").with_variant(sa.BigInteger(), "sqlite")

CHECKS = {
    "task_executions": {
        "status": (
            "CASE WHEN completed_at IS NOT NULL THEN worker_id IS NULL AND status IN ('Completed', 'Failed', 'Cancelled') "
            "WHEN worker_id IS NULL THEN status = 'Ready' ELSE status = 'Running' END"
        ),
        "priority": "priority BETWEEN -100 AND 100",
        "names": "task_name <> '' AND queue <> '' AND partition_key <> ''",
        "on_dead_letter": "on_dead_letter = 'release' OR on_dead_letter = 'hold'",
    },
    "task_outbox": {"claimable": "priority BETWEEN -100 AND 100 AND queue <> '' AND partition_key <> ''"},
    "queue_settings": {"limits": "concurrency_limit >= 0 AND rate_limit >= 1"},
}
"""On both databases."""


def _sqlite_instants(*columns: str) -> dict[str, str]:
    # A class such as [0-9] in the pattern would take twenty times as long.
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
        **_sqlite_numbers("> 0", "3200000000", "rate_seconds"),
    },
}
"""What PostgreSQL's types say; one for each column, since SQLite looks at those of changed columns only."""

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
    _oldest_code()
    if postgresql:
        op.execute("CREATE SEQUENCE task_position")
        for name, (base, constraint, condition) in DOMAINS.items():
            op.execute(f"CREATE DOMAIN {name} AS {base} CONSTRAINT {constraint} CHECK ({condition})")
    _task_executions()
    _task_outbox()
    _task_leases()
    _execution_events(postgresql=postgresql)
    _helpers()
    if postgresql:
        _trigger()
        _enqueue_function()


def downgrade() -> None:
    postgresql = context.get_context().dialect.name == "postgresql"
    if postgresql:
        op.execute("DROP FUNCTION outboxq_enqueue")
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
        for name in DOMAINS:
            op.execute(f"DROP DOMAIN {name}")


def _oldest_code() -> None:
    """Let the schema say the oldest code that it admits, beside its own revision, which Alembic writes after this.

    A database that was taken back to `base` has the column already: Alembic keeps its table.
    """
    table = context.get_context().version_table
    if not context.is_offline_mode():
        columns = sa.inspect(op.get_bind()).get_columns(table)
        if any(column["name"] == "oldest_code" for column in columns):
            return
    op.add_column(table, sa.Column("oldest_code", sa.String(32), server_default=revision, nullable=False))


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
        sa.PrimaryKeyConstraint("task_execution_id", name="pk_task_leases"),
        *_checks("task_leases"),
    )
    _store("task_leases", {"fillfactor": 50, **RESTLESS})


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
        sa.Column("parameter", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("max_attempts", attempts),
        sa.Column("lease_seconds", seconds, nullable=False),
        sa.Column("timeout_seconds", seconds),
        sa.Column("on_dead_letter", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("topic", "task_name", name="pk_task_subscriptions"),
    )
    op.create_table(
        "queue_settings",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("paused_at", instant),
        sa.Column("concurrency_limit", sa.Integer()),
        sa.Column("rate_limit", sa.Integer()),
        sa.Column("rate_seconds", seconds),
        sa.Column("rate_full_at", instant),
        sa.Column("fair", sa.Boolean(), nullable=False),
        sa.Column("updated_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("queue", name="pk_queue_settings"),
        *_checks("queue_settings"),
    )
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
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "sleeping_workers",
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("wakes_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "queue", name="pk_sleeping_workers"),
    )
    _store("sleeping_workers", {"fillfactor": 50, **RESTLESS})
    op.create_index("ix_sleeping_workers_queue", "sleeping_workers", ["queue"])


def _trigger() -> None:
    """One notification per queue and statement, its payload the queue's name; never data, and only where somebody sleeps.

    NOTIFY takes a lock at commit that all notifying commits share, so a busy system must not notify (`store/sleeping_workers.py` has
    the proof that no wake-up is lost). A snapshot older than the statement may not see who fell asleep: above READ COMMITTED
    every enqueue notifies. `outboxq.notify` may be set, for a transaction, a role or a database: `always`; or `off`, for a
    transaction that has notified cannot be prepared (two-phase commit). The function is VOLATILE, so that its look at the
    sleepers is newer than the insert; the proof rests on that.
    """
    # The channel is named after the schema that the table is in now, which `statements/sleeping_workers.py` looks up for its part.
    # The body names every schema, operators too, for the caller's search_path is not to be trusted; to SET one for the
    # function would cost each enqueue more than a look at the sleepers. Where the tables are no longer in the schema that they
    # were made in, the sleepers are looked for anew each time, and notified of every queue.
    # That look comes first: mostly nobody sleeps, and to ask for which queues takes three times as long.
    # A listener proves that it hears us by an insert of no rows that says `proof` and a word; it hears that word.
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
                PERFORM pg_catalog.pg_notify(channel, due.queue) FROM (SELECT DISTINCT queue FROM inserted) AS due;
            ELSE
                PERFORM pg_catalog.pg_notify(channel, due.queue)
                FROM (SELECT queue, pg_catalog.min(available_at) AS available_at FROM inserted GROUP BY queue) AS due
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
    """`Task.enqueue` for programs in any language, in their own transaction: the same rows, the same defaults, the same checks.

    It runs with the rights of its caller. Each statement sees what was committed before it (VOLATILE), so that who waited
    for a key looks at whoever has it now. Its plans are kept by the session, and made while the tables may be empty: so they
    are made without sequential scans.
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
            pipeline_execution_id uuid DEFAULT NULL
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
                    THEN 'task_name must be 1 to 200 characters'
                WHEN jsonb_typeof(args) <> 'object'
                    THEN 'args must be a JSON object with a member for each parameter of the task, not '
                        || jsonb_typeof(args)
                WHEN octet_length(args::text) > 262144
                    THEN 'args must be at most 262144 bytes of JSON; store the document and pass a reference to it'
                WHEN length(queue) NOT BETWEEN 1 AND 200 THEN 'queue must be 1 to 200 characters'
                WHEN length(partition_key) NOT BETWEEN 1 AND 200 THEN 'partition_key must be 1 to 200 characters'
                WHEN length(idempotency_key) NOT BETWEEN 1 AND 200 THEN 'idempotency_key must be 1 to 200 characters'
                WHEN priority NOT BETWEEN -100 AND 100 THEN 'priority must be from -100 to 100, not ' || priority
                WHEN max_attempts < 1 THEN 'max_attempts must be at least 1, not ' || max_attempts
                WHEN extract(epoch FROM lease) NOT BETWEEN shortest AND longest
                    THEN 'lease must be longer than nothing and at most a hundred years'
                WHEN extract(epoch FROM timeout) NOT BETWEEN shortest AND longest
                    THEN 'timeout must be longer than nothing and at most a hundred years'
                WHEN available_at < earliest OR available_at >= latest
                    THEN 'available_at must be in the years 1970 to 9000'
                WHEN expires_at < earliest OR expires_at >= latest THEN 'expires_at must be in the years 1970 to 9000'
                WHEN on_dead_letter NOT IN ('release', 'hold')
                    THEN 'on_dead_letter must be release or hold, not ' || quote_literal(on_dead_letter)
                WHEN on_dead_letter = 'hold' AND partition_key IS NULL
                    THEN 'it cannot hold its partition key when it fails: it has none'
                WHEN extract(epoch FROM unique_for) NOT BETWEEN shortest AND longest
                    THEN 'unique_for must be longer than nothing and at most a hundred years'
                WHEN idempotency_key IS NULL AND (unique_for IS NOT NULL OR unique_until_finished)
                    THEN 'unique_for and unique_until_finished say how long its idempotency_key is taken; give it one'
            END;
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
                created_at, updated_at
            )
            SELECT
                id, coalesce(pipeline_execution_id, id), task_name, queue, partition_key, entry.position, priority,
                args::text, 'Ready', 1, max_attempts, 0, extract(epoch FROM lease), extract(epoch FROM timeout), 0,
                on_dead_letter, expires_at, moment, moment
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


def _store(table: str, parameters: dict[str, int]) -> None:
    """Set PostgreSQL's storage parameters. (In CREATE TABLE, SQLAlchemy says them from 2.1 on only.)"""
    if context.get_context().dialect.name == "postgresql":
        words = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        op.execute(f"ALTER TABLE {table} SET ({words})")


def _checks(table: str) -> list[sa.CheckConstraint]:
    conditions = dict(CHECKS.get(table, {}))
    if context.get_context().dialect.name == "sqlite":
        conditions |= SQLITE_CHECKS.get(table, {})
    return [sa.CheckConstraint(text, name=op.f(f"ck_{table}_{name}")) for name, text in conditions.items()]


def _partial_index(name: str, table: str, columns: list[Any], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
