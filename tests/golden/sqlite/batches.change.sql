INSERT INTO task_batch_changes (batch_id, added, completed, failed, cancelled, closes, changed_at)
SELECT task_batches.id, :added AS anon_1, 0, 0, 0, :closes AS anon_2, :now AS anon_3
FROM task_batches
WHERE
    task_batches.id = :batch_id
    AND task_batches.completed_at IS NULL
    AND (:added <= 0 OR task_batches.cancel_requested_at IS NULL)
RETURNING batch_id AS id
