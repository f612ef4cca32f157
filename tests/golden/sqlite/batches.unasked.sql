WITH leased AS MATERIALIZED (
    SELECT
        task_executions.id AS id,
        task_executions.pipeline_execution_id AS batch_id,
        task_executions.cancel_requested_at AS cancel_requested_at
    FROM task_executions
    WHERE
        task_executions.id IN (SELECT task_leases.task_execution_id FROM task_leases)
        AND task_executions.status = 'Running'
)
SELECT leased.id, 'Running' AS status
FROM leased
WHERE leased.batch_id = :batch_id AND leased.cancel_requested_at IS NULL AND leased.id > :after
ORDER BY leased.id
LIMIT :limit
OFFSET :param_1
