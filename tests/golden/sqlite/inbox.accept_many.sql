-- accepted
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS consumer,
        json_extract(given_rows.value, '$[1]') AS source,
        json_extract(given_rows.value, '$[2]') AS message_id,
        json_extract(given_rows.value, '$[3]') AS keep_seconds
    FROM json_each(:given) AS given_rows
)
INSERT INTO inbox_messages (consumer, source, message_id, expires_at)
SELECT
    given.consumer,
    given.source,
    given.message_id,
    strftime(
        :strftime_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(given.keep_seconds * :keep_seconds_1) AS INTEGER)
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(given.keep_seconds * :keep_seconds_1) AS INTEGER)
        ) % 1000000
    ) AS anon_1
FROM given
WHERE given.message_id IS NOT NULL
ORDER BY given.consumer, given.source, given.message_id
ON CONFLICT DO NOTHING
RETURNING consumer, source, message_id AS id
