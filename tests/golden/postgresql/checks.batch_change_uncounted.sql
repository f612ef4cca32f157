SELECT DISTINCT task_batch_changes.batch_id AS id
FROM task_batch_changes
