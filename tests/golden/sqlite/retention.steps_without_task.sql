SELECT DISTINCT task_steps.task_execution_id AS id
FROM task_steps
WHERE
    task_steps.task_execution_id > :from_id
    AND task_steps.task_execution_id < :to_id
    AND (
        SELECT task_executions.id
        FROM task_executions
        WHERE task_executions.id = task_steps.task_execution_id
    ) IS NULL
ORDER BY task_steps.task_execution_id
LIMIT :limit
OFFSET :param_1
