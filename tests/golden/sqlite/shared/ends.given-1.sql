SELECT
    given_rows."key" AS ordinal,
    json_extract(given_rows.value, '$[0]') AS id,
    json_extract(given_rows.value, '$[1]') AS lease_token,
    json_extract(given_rows.value, '$[2]') AS event_type,
    json_extract(given_rows.value, '$[3]') AS status,
    json_extract(given_rows.value, '$[4]') AS available_at,
    json_extract(given_rows.value, '$[5]') AS delay_seconds,
    json_extract(given_rows.value, '$[6]') AS error,
    json_extract(given_rows.value, '$[7]') AS result
FROM json_each(:given) AS given_rows
