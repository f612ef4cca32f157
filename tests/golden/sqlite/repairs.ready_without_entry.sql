-- entry
INSERT INTO task_outbox (
    task_execution_id,
    queue,
    priority,
    partition_key,
    position,
    topic,
    expires_at,
    available_at,
    created_at
)
SELECT
    task_executions.id,
    task_executions.queue,
    task_executions.priority,
    task_executions.partition_key,
    task_executions.position,
    task_executions.topic,
    task_executions.expires_at,
    coalesce((/* repairs.due-1: param_1, param_2 */), :now) AS coalesce_1,
    :now AS anon_1
FROM task_executions
WHERE
    task_executions.status = 'Ready'
    AND NOT (
        EXISTS (
            SELECT task_outbox.id
            FROM task_outbox
            WHERE task_outbox.task_execution_id = task_executions.id
        )
    )
ON CONFLICT DO NOTHING
RETURNING task_execution_id AS id
