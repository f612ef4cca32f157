SELECT
    recovered_rows."key" AS ordinal,
    json_extract(recovered_rows.value, '$[0]') AS id,
    json_extract(recovered_rows.value, '$[1]') AS task_name,
    json_extract(recovered_rows.value, '$[2]') AS queue,
    json_extract(recovered_rows.value, '$[3]') AS partition_key,
    json_extract(recovered_rows.value, '$[4]') AS topic,
    json_extract(recovered_rows.value, '$[5]') AS status
FROM json_each(:recovered) AS recovered_rows
