SELECT found.id
FROM (
    SELECT anon_1.id AS id
    FROM (
        SELECT
            task_outbox.task_execution_id AS id,
            task_outbox.queue AS queue,
            task_outbox.partition_key AS partition_key,
            task_outbox.topic AS topic,
            task_outbox.available_at AS available_at
        FROM task_outbox
        WHERE task_outbox.queue = %(queue)s::VARCHAR AND task_outbox.partition_key IS NULL
        LIMIT 1
        OFFSET %(scan)s::BIGINT
    ) AS anon_1
    UNION ALL
    SELECT anon_2.id AS id
    FROM (
        SELECT
            task_outbox.task_execution_id AS id,
            task_outbox.queue AS queue,
            task_outbox.partition_key AS partition_key,
            task_outbox.topic AS topic,
            task_outbox.available_at AS available_at
        FROM task_outbox
        WHERE task_outbox.queue = %(queue)s::VARCHAR AND task_outbox.partition_key IS NOT NULL
        LIMIT 1
        OFFSET %(scan)s::BIGINT
    ) AS anon_2
) AS found
