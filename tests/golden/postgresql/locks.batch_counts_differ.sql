SELECT task_batches.id
FROM task_batches
WHERE task_batches.id IN (/* repairs.task_batches-1 */)
ORDER BY task_batches.id
FOR UPDATE
