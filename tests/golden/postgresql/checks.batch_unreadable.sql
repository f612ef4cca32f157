SELECT task_batches.id, task_batches.then_tasks, made.links
FROM task_batches
LEFT OUTER JOIN (/* checks.made-1 */) AS made ON made.id = task_batches.id
WHERE task_batches.completed_at IS NULL
