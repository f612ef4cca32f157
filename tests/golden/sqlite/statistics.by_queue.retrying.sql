WITH queues AS MATERIALIZED (
    SELECT queues_rows."key" AS ordinal, queues_rows.value AS queue
    FROM json_each(:queues) AS queues_rows
)
SELECT task_outbox.queue, count(*) AS retrying
FROM task_outbox
WHERE
    task_outbox.available_at > :now
    AND (
        SELECT execution.retry_at
        FROM task_executions AS execution
        WHERE execution.id = task_outbox.task_execution_id
    ) IS NOT NULL
    AND (
        :every_queue = 1
            OR task_outbox.queue IN (SELECT queues.queue FROM queues)
    )
GROUP BY task_outbox.queue
