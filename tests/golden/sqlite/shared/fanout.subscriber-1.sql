SELECT
    subscriber_rows."key" AS ordinal,
    json_extract(subscriber_rows.value, '$[0]') AS id,
    json_extract(subscriber_rows.value, '$[1]') AS pipeline_execution_id,
    json_extract(subscriber_rows.value, '$[2]') AS task_name,
    json_extract(subscriber_rows.value, '$[3]') AS queue,
    json_extract(subscriber_rows.value, '$[4]') AS priority,
    json_extract(subscriber_rows.value, '$[5]') AS max_attempts,
    json_extract(subscriber_rows.value, '$[6]') AS lease_seconds,
    json_extract(subscriber_rows.value, '$[7]') AS timeout_seconds,
    json_extract(subscriber_rows.value, '$[8]') AS on_dead_letter,
    json_extract(subscriber_rows.value, '$[9]') AS parameter
FROM json_each(:subscriber) AS subscriber_rows
