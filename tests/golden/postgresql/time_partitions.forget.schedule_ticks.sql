DELETE FROM schedule_ticks
WHERE
    schedule_ticks.task_execution_id >= %(lower)s::UUID
    AND schedule_ticks.task_execution_id < %(upper)s::UUID
    AND schedule_ticks.task_execution_id != all(%(kept)s::UUID[])
