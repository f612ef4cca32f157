"""The best hand-written SQL for the same tables, through psycopg only. outboxq's worker is compared with it."""

from __future__ import annotations

CLAIM = """
WITH taken AS (
    DELETE FROM task_outbox WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM task_outbox
        WHERE queue = 'bench' AND partition_key IS NULL AND priority = 0 AND available_at <= (SELECT clock_timestamp())
        ORDER BY available_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING task_execution_id
), claimed AS (
    UPDATE task_executions SET status = 'Running', lease_token = lease_token + 1, worker_id = %(worker)s,
        first_started_at = coalesce(first_started_at, clock_timestamp()), started_at = clock_timestamp(),
        updated_at = clock_timestamp()
    WHERE id = ANY(ARRAY(SELECT task_execution_id FROM taken)) AND status = 'Ready'
    RETURNING id, pipeline_execution_id, lease_token, task_name, args, attempt
), lease AS (
    INSERT INTO task_leases (task_execution_id, queue, lease_token, worker_id, lease_expires_at)
    SELECT id, 'bench', lease_token, %(worker)s, clock_timestamp() + interval '60 seconds' FROM claimed
), event AS (
    INSERT INTO execution_events
        (pipeline_execution_id, task_execution_id, event_type, worker_id, lease_token, created_at)
    SELECT pipeline_execution_id, id, 'task_claimed', %(worker)s, lease_token, clock_timestamp() FROM claimed
)
SELECT id, lease_token, task_name, args, attempt FROM claimed
"""

COMPLETE = """
WITH freed AS (
    DELETE FROM task_leases WHERE task_execution_id = ANY(%(ids)s) AND worker_id = %(worker)s
    RETURNING task_execution_id, lease_token
), ended AS (
    UPDATE task_executions SET status = 'Completed', worker_id = NULL, completed_at = clock_timestamp(),
        updated_at = clock_timestamp()
    WHERE id = ANY(ARRAY(SELECT task_execution_id FROM freed)) AND worker_id = %(worker)s AND status = 'Running'
    RETURNING id, pipeline_execution_id, lease_token, completed_at
)
INSERT INTO execution_events
    (pipeline_execution_id, task_execution_id, event_type, worker_id, lease_token, created_at)
SELECT pipeline_execution_id, id, 'task_completed', %(worker)s, lease_token, completed_at FROM ended
"""

ENQUEUE = """
WITH execution AS (
    INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt,
        recovery_attempts, lease_seconds, lease_token, on_dead_letter, created_at, updated_at)
    SELECT id, id, 'bench.nothing', 'bench', nextval('task_position'), 0, '{"number": ' || %(number)s || '}', 'Ready', 1, 0, 60, 0,
        'release', clock_timestamp(), clock_timestamp()
    FROM (SELECT gen_random_uuid() AS id) AS made
    RETURNING id, position
), event AS (
    INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, event_data, created_at)
    SELECT id, id, 'task_created', '{"available_at": "2000-01-01T00:00:00+00:00"}', clock_timestamp() FROM execution
)
INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
SELECT id, 'bench', 0, position, '2000-01-01T00:00:00+00:00', clock_timestamp() FROM execution
"""

ENQUEUE_ONE = ENQUEUE.replace("(SELECT gen_random_uuid() AS id)", "(SELECT %(id)s::uuid AS id)")
"""The same statement with an id from the client. As in outboxq, such ids are in time order."""
