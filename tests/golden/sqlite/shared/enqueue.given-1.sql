SELECT
    given_rows."key" AS ordinal,
    json_extract(given_rows.value, '$[0]') AS id,
    json_extract(given_rows.value, '$[1]') AS queue,
    json_extract(given_rows.value, '$[2]') AS priority,
    json_extract(given_rows.value, '$[3]') AS available_at,
    json_extract(given_rows.value, '$[4]') AS delay_seconds,
    json_extract(given_rows.value, '$[5]') AS partition_key,
    json_extract(given_rows.value, '$[6]') AS topic,
    json_extract(given_rows.value, '$[7]') AS expires_at,
    json_extract(given_rows.value, '$[8]') AS expires_seconds
FROM json_each(:given) AS given_rows
