DELETE FROM idempotency_keys
WHERE
    idempotency_keys.task_execution_id >= %(lower)s::UUID
    AND idempotency_keys.task_execution_id < %(upper)s::UUID
    AND idempotency_keys.task_execution_id != all(%(kept)s::UUID[])
