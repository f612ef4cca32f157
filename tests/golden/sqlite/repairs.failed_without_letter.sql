-- letter
INSERT INTO dead_letters (task_execution_id, queue, task_name, topic, partition_key, exception, failed_at)
SELECT
    task_executions.id,
    task_executions.queue,
    task_executions.task_name,
    task_executions.topic,
    task_executions.partition_key,
    (/* checks.execution_events-2: param_1, param_2 */) AS anon_1,
    task_executions.completed_at
FROM task_executions
WHERE
    task_executions.status = 'Failed'
    AND NOT (
        EXISTS (
            SELECT dead_letters.task_execution_id
            FROM dead_letters
            WHERE dead_letters.task_execution_id = task_executions.id
        )
    )
ON CONFLICT DO NOTHING
RETURNING task_execution_id AS id
