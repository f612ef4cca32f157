-- doomed
SELECT inbox_messages.consumer, inbox_messages.source, inbox_messages.message_id
FROM inbox_messages
WHERE inbox_messages.expires_at <= :now
ORDER BY inbox_messages.expires_at
LIMIT :limit
OFFSET :param_1;

-- gone
WITH doomed AS MATERIALIZED (
    SELECT
        doomed_rows."key" AS ordinal,
        json_extract(doomed_rows.value, '$[0]') AS consumer,
        json_extract(doomed_rows.value, '$[1]') AS source,
        json_extract(doomed_rows.value, '$[2]') AS message_id
    FROM json_each(:doomed) AS doomed_rows
)
DELETE FROM inbox_messages
WHERE (inbox_messages.consumer, inbox_messages.source, inbox_messages.message_id) IN (
    SELECT doomed.consumer, doomed.source, doomed.message_id FROM doomed
)
RETURNING message_id AS id
