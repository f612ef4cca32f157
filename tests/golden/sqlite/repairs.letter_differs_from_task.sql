-- moved
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
        SELECT (/* checks.execution_events-2: param_1, param_2 */) AS anon_1
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
            dead_letters.queue IS NOT task_executions.queue
                OR dead_letters.task_name IS NOT task_executions.task_name
                OR dead_letters.topic IS NOT task_executions.topic
                OR dead_letters.partition_key IS NOT task_executions.partition_key
                OR dead_letters.exception IS NOT (/* checks.execution_events-2: param_3, param_4 */)
                OR dead_letters.failed_at IS NOT task_executions.completed_at
        )
)
RETURNING task_execution_id AS id
