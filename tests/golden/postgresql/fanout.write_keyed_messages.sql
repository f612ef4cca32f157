WITH
    subscriber AS MATERIALIZED (/* fanout.subscriber-1 */),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    accepted AS (
        INSERT INTO inbox_messages (consumer, source, message_id, expires_at)
        SELECT
            subscriber.task_name AS task_name,
            '',
            %(idempotency_key)s::VARCHAR AS anon_1,
            (SELECT clock.now FROM clock) + 604800.0 * interval '1 second' AS anon_2
        FROM subscriber
        WHERE
            subscriber.parameter IS NULL
            AND (SELECT count(subscriber.id) AS count_1 FROM subscriber) <= %(most_subscribers)s::INTEGER
        ORDER BY subscriber.task_name
        ON CONFLICT DO NOTHING
        RETURNING inbox_messages.consumer AS task_name
    ),
    assigned AS MATERIALIZED (SELECT pg_current_xact_id() AS xact_id),
    message AS (
        INSERT INTO relay_messages (relay, slot, event_id, topic, partition_key, headers, payload, created_at)
        SELECT
            substr(accepted.task_name, 7) AS substr_1,
            %(slot)s::SMALLINT AS anon_3,
            %(pipeline_execution_id)s::UUID AS anon_4,
            %(topic)s::VARCHAR AS anon_5,
            %(relay_key)s::VARCHAR AS anon_6,
            %(headers)s::VARCHAR AS anon_7,
            %(payload)s::VARCHAR AS anon_8,
            (SELECT clock.now FROM clock) AS anon_9
        FROM assigned, accepted
        WHERE assigned.xact_id IS NOT NULL
        ORDER BY accepted.task_name
    ),
    accepted_id AS MATERIALIZED (
        SELECT subscriber.id AS id, accepted.task_name AS accepted_by
        FROM subscriber, accepted
        WHERE subscriber.task_name = accepted.task_name
    )
SELECT accepted.task_name
FROM accepted
