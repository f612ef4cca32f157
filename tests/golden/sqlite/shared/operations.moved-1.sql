SELECT
    moved_rows."key" AS ordinal,
    json_extract(moved_rows.value, '$[0]') AS id,
    json_extract(moved_rows.value, '$[1]') AS queue,
    json_extract(moved_rows.value, '$[2]') AS priority,
    json_extract(moved_rows.value, '$[3]') AS partition_key,
    json_extract(moved_rows.value, '$[4]') AS position,
    json_extract(moved_rows.value, '$[5]') AS topic,
    json_extract(moved_rows.value, '$[6]') AS expires_at,
    json_extract(moved_rows.value, '$[7]') AS status
FROM json_each(:moved) AS moved_rows
