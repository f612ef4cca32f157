WITH tasks AS MATERIALIZED (
    SELECT tasks_rows."key" AS ordinal, tasks_rows.value AS id
    FROM json_each(:tasks) AS tasks_rows
)
SELECT
    task_outbox.task_execution_id AS id,
    task_outbox.available_at,
    (
        SELECT first.task_execution_id
        FROM task_outbox AS first
        WHERE first.queue = task_outbox.queue AND first.partition_key = task_outbox.partition_key
        ORDER BY first.priority DESC, first.position
        LIMIT :param_1
        OFFSET :param_2
    ) AS head,
    (
        SELECT claim.held
        FROM partition_claims AS claim
        WHERE claim.queue = task_outbox.queue AND claim.partition_key = task_outbox.partition_key
    ) AS held
FROM task_outbox
WHERE task_outbox.task_execution_id IN (SELECT tasks.id FROM tasks)
