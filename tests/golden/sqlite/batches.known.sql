SELECT task_batches.id
FROM task_batches
WHERE task_batches.id = :batch_id
