SELECT dead_letters.task_execution_id AS id
FROM dead_letters
WHERE dead_letters.task_execution_id >= :from_id AND dead_letters.task_execution_id < :to_id
ORDER BY dead_letters.task_execution_id DESC
LIMIT 2
OFFSET :scan - 1
