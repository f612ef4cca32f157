WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    given AS (
        SELECT
            batch.consumer AS consumer,
            batch.source AS source,
            batch.message_id AS message_id,
            batch.keep_seconds AS keep_seconds,
            batch.ordinal AS ordinal
        FROM unnest(
            %(given_consumer)s::TEXT[],
            %(given_source)s::TEXT[],
            %(given_message_id)s::TEXT[],
            %(given_keep_seconds)s::DOUBLE PRECISION[]
        ) WITH ORDINALITY AS batch(consumer, source, message_id, keep_seconds, ordinal)
    ),
    accepted AS (
        INSERT INTO inbox_messages (consumer, source, message_id, expires_at)
        SELECT
            given.consumer AS consumer,
            given.source AS source,
            given.message_id AS message_id,
            (SELECT clock.now FROM clock) + given.keep_seconds * interval '1 second' AS anon_1
        FROM given
        WHERE given.message_id IS NOT NULL
        ORDER BY given.consumer, given.source, given.message_id
        ON CONFLICT DO NOTHING
        RETURNING inbox_messages.consumer, inbox_messages.source, inbox_messages.message_id AS id
    )
SELECT accepted.consumer, accepted.source, accepted.id
FROM accepted
