SELECT
    task_outbox.id AS entry_id,
    (
        SELECT task_executions.pipeline_execution_id
        FROM task_executions
        WHERE task_executions.id = task_outbox.task_execution_id
    ) AS batch_id
FROM task_outbox
WHERE
    task_outbox.available_at <= :now
    AND task_outbox.expires_at <= :now
    AND (
        SELECT task_executions.pipeline_execution_id
        FROM task_executions
        WHERE task_executions.id = task_outbox.task_execution_id
    ) >= :param_1
ORDER BY task_outbox.id
LIMIT :limit
OFFSET :param_2
