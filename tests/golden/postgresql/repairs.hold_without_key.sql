WITH moved AS (
    UPDATE task_executions
    SET on_dead_letter='release'
    WHERE task_executions.on_dead_letter = 'hold' AND task_executions.partition_key IS NULL
    RETURNING task_executions.id
)
SELECT moved.id
FROM moved
