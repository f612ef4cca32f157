SELECT
    anon_1.id AS id,
    anon_1.queue AS queue,
    anon_1.partition_key AS partition_key,
    anon_1.topic AS topic,
    anon_1.available_at AS available_at
FROM (
    SELECT
        task_outbox.task_execution_id AS id,
        task_outbox.queue AS queue,
        task_outbox.partition_key AS partition_key,
        task_outbox.topic AS topic,
        task_outbox.available_at AS available_at
    FROM task_outbox
    WHERE
        task_outbox.queue = %(queue)s::VARCHAR
        AND task_outbox.partition_key IS NULL
        AND task_outbox.task_execution_id >= %(from_id)s::UUID
        AND task_outbox.task_execution_id < %(to_id)s::UUID
    LIMIT %(scan)s::BIGINT
) AS anon_1
UNION ALL
SELECT
    anon_2.id AS id,
    anon_2.queue AS queue,
    anon_2.partition_key AS partition_key,
    anon_2.topic AS topic,
    anon_2.available_at AS available_at
FROM (
    SELECT
        task_outbox.task_execution_id AS id,
        task_outbox.queue AS queue,
        task_outbox.partition_key AS partition_key,
        task_outbox.topic AS topic,
        task_outbox.available_at AS available_at
    FROM task_outbox
    WHERE
        task_outbox.queue = %(queue)s::VARCHAR
        AND task_outbox.partition_key IS NOT NULL
        AND task_outbox.task_execution_id >= %(from_id)s::UUID
        AND task_outbox.task_execution_id < %(to_id)s::UUID
    LIMIT %(scan)s::BIGINT
) AS anon_2
