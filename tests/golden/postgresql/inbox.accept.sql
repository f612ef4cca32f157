WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    accepted AS (
        INSERT INTO inbox_messages (consumer, source, message_id, expires_at)
        VALUES (
            %(consumer)s::VARCHAR,
            %(source)s::VARCHAR,
            %(message_id)s::VARCHAR,
            ((SELECT clock.now FROM clock) + %(keep_seconds)s * interval '1 second')
        )
        ON CONFLICT DO NOTHING
        RETURNING 1 AS id
    )
SELECT accepted.id
FROM accepted
