WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE task_batches
SET
    closed=true,
    runs_then=(task_batches.runs_then AND %(runs_then)s),
    cancel_requested_at=coalesce(task_batches.cancel_requested_at, (SELECT clock.now FROM clock)),
    updated_at=(SELECT clock.now FROM clock)
WHERE task_batches.id = %(batch_id)s::UUID AND task_batches.completed_at IS NULL
RETURNING task_batches.id, task_batches.on_failed
