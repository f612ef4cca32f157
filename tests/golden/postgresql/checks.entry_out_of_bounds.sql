SELECT task_outbox.task_execution_id AS id
FROM task_outbox
WHERE
    NOT (
        task_outbox.available_at >= '1970-01-01 00:00:00+00'
            AND task_outbox.available_at < '9001-01-01 00:00:00+00'
    )
    OR NOT (
        task_outbox.expires_at >= '1970-01-01 00:00:00+00'
            AND task_outbox.expires_at < '9001-01-01 00:00:00+00'
    )
    OR task_outbox.queue = ''
    OR task_outbox.partition_key = ''
    OR task_outbox.priority NOT BETWEEN -100
    AND 100
