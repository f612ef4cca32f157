-- gone
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
DELETE FROM task_outbox
WHERE task_outbox.task_execution_id IN (SELECT given.id FROM given);

-- failed
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS id,
        json_extract(given_rows.value, '$[1]') AS error
    FROM json_each(:given) AS given_rows
)
UPDATE task_executions
SET status='Failed', completed_at=:now, updated_at=:now, last_error=given.error
FROM given
WHERE task_executions.id = given.id
RETURNING
    id,
    pipeline_execution_id,
    task_name,
    queue,
    priority,
    partition_key,
    position,
    topic,
    expires_at,
    on_dead_letter,
    status,
    last_error;

-- event
WITH failed AS MATERIALIZED (
    SELECT
        failed_rows."key" AS ordinal,
        json_extract(failed_rows.value, '$[0]') AS id,
        json_extract(failed_rows.value, '$[1]') AS pipeline_execution_id,
        json_extract(failed_rows.value, '$[2]') AS last_error
    FROM json_each(:failed) AS failed_rows
)
INSERT INTO execution_events (
    pipeline_execution_id,
    task_execution_id,
    event_type,
    event_data,
    worker_id,
    lease_token,
    created_at
)
SELECT
    failed.pipeline_execution_id,
    failed.id,
    'task_failed',
    json_patch('{}', json_object('error', failed.last_error, 'exception', 'outboxq.errors.EventRefused')) AS json_patch_1,
    NULL AS anon_1,
    NULL AS anon__1,
    :now AS anon_2
FROM failed;

-- dead_letter
WITH failed AS MATERIALIZED (
    SELECT
        failed_rows."key" AS ordinal,
        json_extract(failed_rows.value, '$[0]') AS id,
        json_extract(failed_rows.value, '$[1]') AS task_name,
        json_extract(failed_rows.value, '$[2]') AS queue,
        json_extract(failed_rows.value, '$[3]') AS partition_key,
        json_extract(failed_rows.value, '$[4]') AS topic,
        json_extract(failed_rows.value, '$[5]') AS status
    FROM json_each(:failed) AS failed_rows
)
INSERT INTO dead_letters (task_execution_id, queue, task_name, topic, partition_key, exception, failed_at)
SELECT
    failed.id,
    failed.queue,
    failed.task_name,
    failed.topic,
    failed.partition_key,
    'outboxq.errors.EventRefused',
    :now AS anon_1
FROM failed
WHERE failed.status = 'Failed'
ON CONFLICT DO NOTHING;

-- held
WITH failed AS MATERIALIZED (
    SELECT
        failed_rows."key" AS ordinal,
        json_extract(failed_rows.value, '$[0]') AS id,
        json_extract(failed_rows.value, '$[1]') AS queue,
        json_extract(failed_rows.value, '$[2]') AS partition_key,
        json_extract(failed_rows.value, '$[3]') AS on_dead_letter
    FROM json_each(:failed) AS failed_rows
)
INSERT INTO partition_claims (queue, partition_key, task_execution_id, held)
SELECT failed.queue, failed.partition_key, failed.id, 1 AS anon_1
FROM failed
WHERE failed.partition_key IS NOT NULL AND failed.on_dead_letter = 'hold'
ON CONFLICT DO NOTHING
