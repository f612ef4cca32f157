SELECT
    given_rows."key" AS ordinal,
    json_extract(given_rows.value, '$[0]') AS id,
    json_extract(given_rows.value, '$[1]') AS pipeline_execution_id,
    json_extract(given_rows.value, '$[2]') AS task_name,
    json_extract(given_rows.value, '$[3]') AS queue,
    json_extract(given_rows.value, '$[4]') AS priority,
    json_extract(given_rows.value, '$[5]') AS args,
    json_extract(given_rows.value, '$[6]') AS headers,
    json_extract(given_rows.value, '$[7]') AS max_attempts,
    json_extract(given_rows.value, '$[8]') AS lease_seconds,
    json_extract(given_rows.value, '$[9]') AS timeout_seconds,
    json_extract(given_rows.value, '$[10]') AS partition_key,
    json_extract(given_rows.value, '$[11]') AS on_dead_letter,
    json_extract(given_rows.value, '$[12]') AS topic
FROM json_each(:given) AS given_rows
