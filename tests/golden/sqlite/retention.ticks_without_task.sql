SELECT schedule_ticks.task_execution_id AS id
FROM schedule_ticks
WHERE
    schedule_ticks.task_execution_id > :from_id
    AND schedule_ticks.task_execution_id < :to_id
    AND (
        SELECT task_executions.id
        FROM task_executions
        WHERE task_executions.id = schedule_ticks.task_execution_id
    ) IS NULL
ORDER BY schedule_ticks.task_execution_id
LIMIT :limit
OFFSET :param_1
