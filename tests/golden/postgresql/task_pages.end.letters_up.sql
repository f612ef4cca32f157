SELECT dead_letters.task_execution_id AS id
FROM dead_letters
WHERE dead_letters.task_execution_id >= %(from_id)s::UUID AND dead_letters.task_execution_id < %(to_id)s::UUID
ORDER BY dead_letters.task_execution_id
LIMIT 2
OFFSET %(scan)s::BIGINT - 1
