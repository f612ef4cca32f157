WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
INSERT INTO task_batch_changes (batch_id, added, completed, failed, cancelled, closes, changed_at)
SELECT
    task_batches.id,
    %(added)s::INTEGER AS anon_1,
    0,
    0,
    0,
    %(closes)s AS anon_2,
    (SELECT clock.now FROM clock) AS anon_3
FROM task_batches
WHERE
    task_batches.id = %(batch_id)s::UUID
    AND task_batches.completed_at IS NULL
    AND (%(added)s::INTEGER <= 0 OR task_batches.cancel_requested_at IS NULL)
RETURNING task_batch_changes.batch_id AS id
