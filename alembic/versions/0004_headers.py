"""The SQL function's argument `headers`."""

from __future__ import annotations

import re

from alembic import context, op

from outboxq.migrations import admit_from

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _make_function(headers=True)
    admit_from("0001")


def downgrade() -> None:
    _make_function(headers=False)
    admit_from("0001")


def _make_function(*, headers: bool) -> None:
    """Make the function with or without its last argument, in place of the one that is there.

    A function with another argument is another function, so its owner, its rights and SECURITY DEFINER are carried over.
    """
    if context.get_context().dialect.name != "postgresql":
        return
    text = re.sub(r"\[\[(.*?)\]\]", r"\1" if headers else "", FUNCTION, flags=re.DOTALL)
    before, after = (15, 16) if headers else (16, 15)
    script = REPLACE.replace("<BEFORE>", str(before)).replace("<AFTER>", str(after))
    op.execute(script.replace("<FUNCTION>", text.strip("\n")))


REPLACE = """
DO $do$
DECLARE
    old record;
    new record;
    one record;
BEGIN
    SELECT oid, proowner, coalesce(proacl, acldefault('f', proowner)) AS acl, prosecdef INTO old
    FROM pg_catalog.pg_proc
    WHERE proname = 'outboxq_enqueue' AND pronargs = <BEFORE>
        AND pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema());
    IF NOT FOUND THEN
        RETURN;  -- somebody has dropped it
    END IF;
    EXECUTE format('DROP FUNCTION %s', old.oid::regprocedure);
    EXECUTE format($create$
<FUNCTION>
$create$, current_schema(), format('%I.task_position', current_schema()));
    SELECT oid::regprocedure AS name, proowner, coalesce(proacl, acldefault('f', proowner)) AS acl INTO new
    FROM pg_catalog.pg_proc
    WHERE proname = 'outboxq_enqueue' AND pronargs = <AFTER>
        AND pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema());
    IF new.proowner <> old.proowner THEN
        EXECUTE format('ALTER FUNCTION %s OWNER TO %s', new.name, old.proowner::regrole);
    END IF;
    IF new.acl <> old.acl THEN
        FOR one IN SELECT DISTINCT grantee FROM aclexplode(new.acl) LOOP
            EXECUTE format(
                'REVOKE ALL ON FUNCTION %s FROM %s',
                new.name,
                CASE one.grantee WHEN 0 THEN 'PUBLIC' WHEN new.proowner THEN old.proowner::regrole::text
                    ELSE one.grantee::regrole::text END
            );
        END LOOP;
        FOR one IN
            SELECT grantee, bool_or(is_grantable) AS is_grantable FROM aclexplode(old.acl) GROUP BY grantee
        LOOP
            EXECUTE format(
                'GRANT EXECUTE ON FUNCTION %s TO %s%s',
                new.name,
                CASE one.grantee WHEN 0 THEN 'PUBLIC' ELSE one.grantee::regrole::text END,
                CASE WHEN one.is_grantable THEN ' WITH GRANT OPTION' END
            );
        END LOOP;
    END IF;
    IF old.prosecdef THEN
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER', new.name);
    END IF;
END $do$
"""
"""The rights are those of ALTER FUNCTION and GRANT; none is lost or added, whatever ALTER DEFAULT PRIVILEGES says."""

FUNCTION = """
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
            pipeline_execution_id uuid DEFAULT NULL[[,
            headers jsonb DEFAULT NULL]]
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
[[            IF complaint IS NULL AND headers IS NOT NULL THEN
                complaint := CASE
                    WHEN jsonb_typeof(headers) <> 'object'
                        THEN 'headers must be a JSON object of texts, not ' || jsonb_typeof(headers)
                    WHEN octet_length(headers::text) > 8192 THEN 'headers must be at most 8192 bytes of JSON'
                    ELSE (
                        SELECT CASE
                            WHEN length(one.key) NOT BETWEEN 1 AND 100
                                THEN 'the names of headers must be 1 to 100 characters'
                            WHEN jsonb_typeof(one.value) <> 'string'
                                THEN 'the header ' || quote_literal(one.key) || ' must be a text, not '
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
]]            IF complaint IS NOT NULL THEN
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
                created_at, updated_at[[, headers]]
            )
            SELECT
                id, coalesce(pipeline_execution_id, id), task_name, queue, partition_key, entry.position, priority,
                args::text, 'Ready', 1, max_attempts, 0, extract(epoch FROM lease), extract(epoch FROM timeout), 0,
                on_dead_letter, expires_at, moment, moment[[, nullif(headers, '{}')::text]]
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
"""
"""Text for format(). Parts in double brackets belong to the argument `headers`; without them it is revision 0001's."""
