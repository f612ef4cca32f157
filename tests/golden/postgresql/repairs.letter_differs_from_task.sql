WITH moved AS (
    UPDATE dead_letters
    SET
        queue=(
            SELECT task_executions.queue
            FROM task_executions
            WHERE task_executions.id = dead_letters.task_execution_id
        ),
        task_name=(
            SELECT task_executions.task_name
            FROM task_executions
            WHERE task_executions.id = dead_letters.task_execution_id
        ),
        topic=(
            SELECT task_executions.topic
            FROM task_executions
            WHERE task_executions.id = dead_letters.task_execution_id
        ),
        partition_key=(
            SELECT task_executions.partition_key
            FROM task_executions
            WHERE task_executions.id = dead_letters.task_execution_id
        ),
        exception=(
            SELECT (/* repairs.execution_events-3: param_1 */) AS anon_1
            FROM task_executions
            WHERE task_executions.id = dead_letters.task_execution_id
        ),
        failed_at=(
            SELECT task_executions.completed_at
            FROM task_executions
            WHERE task_executions.id = dead_letters.task_execution_id
        )
    WHERE EXISTS (
        SELECT task_executions.id
        FROM task_executions
        WHERE
            task_executions.id = dead_letters.task_execution_id
            AND task_executions.status = 'Failed'
            AND (
                dead_letters.queue IS DISTINCT FROM task_executions.queue
                    OR dead_letters.task_name IS DISTINCT FROM task_executions.task_name
                    OR dead_letters.topic IS DISTINCT FROM task_executions.topic
                    OR dead_letters.partition_key IS DISTINCT FROM task_executions.partition_key
                    OR dead_letters.exception IS DISTINCT FROM (/* checks.execution_events-2: param_2 */)
                    OR dead_letters.failed_at IS DISTINCT FROM task_executions.completed_at
            )
    )
    RETURNING dead_letters.task_execution_id AS id
)
SELECT moved.id
FROM moved
