-- gone
DELETE FROM task_outbox
WHERE task_outbox.id = :entry_id
RETURNING task_execution_id AS id;

-- failed
WITH gone AS MATERIALIZED (
    SELECT gone_rows."key" AS ordinal, gone_rows.value AS id
    FROM json_each(:gone) AS gone_rows
)
UPDATE task_executions
SET status='Failed', completed_at=:now, updated_at=:now, last_error=:error
WHERE
    task_executions.id IN (SELECT gone.id FROM gone)
    AND task_executions.status = 'Ready'
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
    status;

-- event
WITH failed AS MATERIALIZED (
    SELECT
        failed_rows."key" AS ordinal,
        json_extract(failed_rows.value, '$[0]') AS id,
        json_extract(failed_rows.value, '$[1]') AS pipeline_execution_id
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
    json_patch('{}', json_object('error', :error)) AS json_patch_1,
    NULL AS anon_1,
    NULL AS anon__1,
    :now AS anon_2
FROM failed;

-- letter
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
    NULL AS anon_1,
    :now AS anon_2
FROM failed
WHERE failed.status = 'Failed'
ON CONFLICT DO NOTHING
