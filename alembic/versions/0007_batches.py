"""Batches: their table, the changes of an open transaction, and the triggers that count ends and enqueue what comes next.

The counting is done by triggers and not by statements of outboxq, so that it is right for every end of a member: by a worker of an older
release, a person by hand, or plain SQL. The condition of the trigger on `task_executions` is one comparison with a constant: ids of
batches begin with a bit that ids made from the time have not.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from outboxq.migrations import admit_from

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


class _Named(sa.types.UserDefinedType[Any]):
    """A type of PostgreSQL, or a domain of revision 0001."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        return self.name


instant = _Named("outboxq_instant").with_variant(sa.Text(), "sqlite")
INSTANTS = ("cancel_requested_at", "created_at", "updated_at", "completed_at")
COUNTS = ("added", "completed", "failed", "cancelled")


def upgrade() -> None:
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
        *(sa.Column(name, instant, nullable=name in {"cancel_requested_at", "completed_at"}) for name in INSTANTS),
        sa.PrimaryKeyConstraint("id", name="pk_task_batches"),
        *_checks(),
    )
    open_ones = sa.text("completed_at IS NULL")
    op.create_index("ix_task_batches_open", "task_batches", ["id"], postgresql_where=open_ones, sqlite_where=open_ones)
    if _is_postgresql():
        op.execute("ALTER TABLE task_batches SET (fillfactor = 50)")
    transaction = [sa.Column("xact_id", _Named("xid8"), server_default=sa.text("pg_current_xact_id()"))]
    op.create_table(
        "task_batch_changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), nullable=False),
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in COUNTS),
        sa.Column("closes", sa.Boolean(), nullable=False),
        sa.Column("changed_at", instant, nullable=False),
        *(transaction if _is_postgresql() else [sa.Column("xact_id", sa.Integer())]),
        sa.PrimaryKeyConstraint("id", name="pk_task_batch_changes"),
    )
    op.create_index("ix_task_batch_changes_xact_id", "task_batch_changes", ["xact_id"])
    for statement in POSTGRESQL if _is_postgresql() else SQLITE:
        op.execute(statement)
    admit_from("0001")


def downgrade() -> None:
    if _is_postgresql():
        op.execute("DROP TRIGGER task_executions_batch ON task_executions")
        op.execute("DROP TRIGGER task_batch_changes_count ON task_batch_changes")
        op.execute("DROP TRIGGER task_batches_advance ON task_batches")
        for name in ("note_end", "count_ends", "advance_batch"):
            op.execute(f"DROP FUNCTION outboxq_{name}()")
    else:
        op.execute("DROP TRIGGER task_executions_batch")
    op.drop_table("task_batch_changes")
    op.drop_table("task_batches")
    admit_from("0001")


def _is_postgresql() -> bool:
    return context.get_context().dialect.name == "postgresql"


def _checks() -> list[Any]:
    conditions = {
        "kind": "kind = 'batch' OR kind = 'chain'",
        "on_failed": "on_failed = 'continue' OR on_failed = 'wait' OR on_failed = 'cancel'",
        "counts": "size >= 0 AND stage >= 0",
    }
    if not _is_postgresql():
        conditions["id"] = "length(id) = 32 AND lower(id) = id AND id < 'g'"
        conditions |= {name: f"typeof({name}) <> 'blob'" for name in ("name", "then_tasks")}
        form = "????-??-??T??:??:??.??????+00:00"
        conditions |= {name: f"{name} GLOB '{form}' AND {name} >= '1970' AND {name} < '9001'" for name in INSTANTS}
    return [sa.CheckConstraint(text, name=op.f(f"ck_task_batches_{name}")) for name, text in conditions.items()]


POSTGRESQL = (
    # The ends of a transaction are collected as rows, and counted when it commits: in the order of the batches, so that two
    # transactions never wait for each other, and as late as possible, since the row of a batch is locked from then on.
    # They run as their owner: the roles of workers were granted their rights before there were batches.
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
            UPDATE %1$I.task_batches AS batch SET
                size = batch.size + change.added,
                completed = batch.completed + change.completed,
                failed = batch.failed + change.failed,
                cancelled = batch.cancelled + change.cancelled,
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
            size = NEW.size + (NOT ends)::integer,
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
    # They have the rights of the owner of the tasks, and not those of an administrator who upgrades: their statements run the
    # triggers that this owner makes.
    """
    DO $do$
    DECLARE
        owner name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'task_executions'::regclass);
        one text;
    BEGIN
        IF owner <> current_user AND has_schema_privilege(owner, current_schema(), 'CREATE') THEN
            FOREACH one IN ARRAY ARRAY[
                'TABLE task_batches', 'TABLE task_batch_changes', 'FUNCTION outboxq_note_end()',
                'FUNCTION outboxq_count_ends()', 'FUNCTION outboxq_advance_batch()'
            ] LOOP
                EXECUTE format('ALTER %s OWNER TO %I', one, owner);
            END LOOP;
        END IF;
    END
    $do$
    """,
    "REVOKE ALL ON FUNCTION outboxq_note_end(), outboxq_count_ends(), outboxq_advance_batch() FROM PUBLIC",
    """
    ALTER TABLE task_batch_changes SET (
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
    )
    """,
    """
    CREATE TRIGGER task_batches_advance AFTER UPDATE OF size, completed, failed, cancelled, closed, runs_then ON task_batches
    FOR EACH ROW WHEN (
        NEW.completed_at IS NULL AND NEW.closed AND NEW.size <= NEW.completed + NEW.cancelled
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
    """Return SQLite's words for so many seconds after the change, exact to the microsecond."""
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

SQLITE = (
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
