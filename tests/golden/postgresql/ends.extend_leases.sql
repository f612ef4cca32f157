WITH
    given AS (
        SELECT
            batch.id AS id,
            batch.lease_token AS lease_token,
            batch.lease_seconds AS lease_seconds,
            batch.progress AS progress,
            batch.progress_note AS progress_note,
            batch.ordinal AS ordinal
        FROM unnest(
            %(given_id)s::UUID[],
            %(given_lease_token)s::BIGINT[],
            %(given_lease_seconds)s::DOUBLE PRECISION[],
            %(given_progress)s::DOUBLE PRECISION[],
            %(given_progress_note)s::TEXT[]
        ) WITH ORDINALITY AS batch(id, lease_token, lease_seconds, progress, progress_note, ordinal)
    ),
    there AS MATERIALIZED (
        SELECT task_leases.task_execution_id AS id
        FROM task_leases
        JOIN given ON task_leases.task_execution_id = given.id
        WHERE
            task_leases.task_execution_id = any(array((SELECT given.id FROM given)))
            AND task_leases.lease_token = given.lease_token
            AND task_leases.worker_id = %(worker_id)s::UUID
    ),
    held AS MATERIALIZED (
        SELECT task_leases.task_execution_id AS id
        FROM task_leases
        JOIN given ON task_leases.task_execution_id = given.id
        WHERE
            task_leases.task_execution_id = any(array((SELECT there.id FROM there)))
            AND task_leases.lease_token = given.lease_token
            AND task_leases.worker_id = %(worker_id)s::UUID
        ORDER BY task_leases.task_execution_id
        FOR UPDATE OF task_leases SKIP LOCKED
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    beaten AS (
        UPDATE task_leases
        SET
            lease_expires_at=(
                (SELECT clock.now FROM clock) + given.lease_seconds * interval '1 second'
            ),
            progress=coalesce(given.progress, task_leases.progress),
            progress_note=coalesce(given.progress_note, task_leases.progress_note)
        FROM given
        WHERE
            task_leases.task_execution_id = any(array((SELECT held.id FROM held)))
            AND task_leases.task_execution_id = given.id
        RETURNING task_leases.task_execution_id AS id, task_leases.lease_expires_at
    ),
    request AS MATERIALIZED (
        SELECT task_executions.id AS id, task_executions.cancel_requested_at AS cancel_requested_at
        FROM task_executions
        WHERE task_executions.id = any(array((SELECT there.id FROM there)))
    )
SELECT there.id, beaten.lease_expires_at, request.cancel_requested_at
FROM there
LEFT OUTER JOIN beaten ON beaten.id = there.id
LEFT OUTER JOIN request ON request.id = there.id
