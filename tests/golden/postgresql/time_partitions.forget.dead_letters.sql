DELETE FROM dead_letters
WHERE
    dead_letters.task_execution_id >= %(lower)s::UUID
    AND dead_letters.task_execution_id < %(upper)s::UUID
    AND dead_letters.task_execution_id != all(%(kept)s::UUID[])
