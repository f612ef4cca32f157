SELECT task_batches.id, task_batches.then_tasks
FROM task_batches
WHERE task_batches.id IN (/* repairs.task_batches-2 */)
ORDER BY task_batches.id
