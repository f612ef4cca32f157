WITH letter AS (
    INSERT INTO dead_letters (task_execution_id, queue, task_name, topic, partition_key, exception, failed_at)
    SELECT
        task_executions.id AS id,
        task_executions.queue AS queue,
        task_executions.task_name AS task_name,
        task_executions.topic AS topic,
        task_executions.partition_key AS partition_key,
        (/* repairs.execution_events-3: param_1 */) AS anon_1,
        task_executions.completed_at AS completed_at
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
    FOR UPDATE OF task_executions
    ON CONFLICT DO NOTHING
    RETURNING dead_letters.task_execution_id AS id
)
SELECT letter.id
FROM letter
