WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    doomed AS MATERIALIZED (
        SELECT
            inbox_messages.consumer AS consumer,
            inbox_messages.source AS source,
            inbox_messages.message_id AS message_id
        FROM inbox_messages
        WHERE inbox_messages.expires_at <= (SELECT clock.now FROM clock)
        ORDER BY inbox_messages.expires_at
        LIMIT %(limit)s::BIGINT
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM inbox_messages
        WHERE (inbox_messages.consumer, inbox_messages.source, inbox_messages.message_id) IN (
            SELECT doomed.consumer, doomed.source, doomed.message_id FROM doomed
        )
        RETURNING inbox_messages.message_id AS id
    )
SELECT gone.id
FROM gone
