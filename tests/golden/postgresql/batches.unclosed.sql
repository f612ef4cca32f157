SELECT first.id, first.name
FROM (
    SELECT task_batches.id AS id, task_batches.name AS name, task_batches.closed AS closed
    FROM task_batches
    WHERE task_batches.completed_at IS NULL
    ORDER BY task_batches.id
    LIMIT %(most)s::BIGINT
) AS first
WHERE NOT first.closed
ORDER BY first.id
