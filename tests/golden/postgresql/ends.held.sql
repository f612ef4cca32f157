WITH
    given AS (
        SELECT batch.id AS id, batch.lease_token AS lease_token, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::UUID[], %(given_lease_token)s::BIGINT[]) WITH ORDINALITY AS batch(
            id,
            lease_token,
            ordinal
        )
    ),
    there AS MATERIALIZED (
        SELECT task_leases.task_execution_id AS id
        FROM task_leases
        JOIN given ON task_leases.task_execution_id = given.id
        WHERE
            task_leases.task_execution_id = any(array((SELECT given.id FROM given)))
            AND task_leases.lease_token = given.lease_token
            AND task_leases.worker_id = %(worker_id)s::UUID
    )
SELECT there.id
FROM there
