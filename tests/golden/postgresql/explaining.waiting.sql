WITH tasks AS (
    SELECT batch.id AS id, batch.ordinal AS ordinal
    FROM unnest(%(tasks_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
)
SELECT
    task_outbox.task_execution_id AS id,
    task_outbox.available_at,
    (
        SELECT first.task_execution_id
        FROM task_outbox AS first
        WHERE first.queue = task_outbox.queue AND first.partition_key = task_outbox.partition_key
        ORDER BY first.priority DESC, first.position
        LIMIT %(param_1)s::INTEGER
    ) AS head,
    (
        SELECT claim.held
        FROM partition_claims AS claim
        WHERE claim.queue = task_outbox.queue AND claim.partition_key = task_outbox.partition_key
    ) AS held
FROM task_outbox
WHERE task_outbox.task_execution_id = any(array((SELECT tasks.id FROM tasks)))
