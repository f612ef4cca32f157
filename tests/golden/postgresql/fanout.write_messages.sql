WITH
    subscriber AS MATERIALIZED (/* fanout.subscriber-1 */),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    assigned AS MATERIALIZED (SELECT pg_current_xact_id() AS xact_id)
INSERT INTO relay_messages (relay, slot, event_id, topic, partition_key, headers, payload, created_at)
SELECT
    substr(subscriber.task_name, 7) AS substr_1,
    %(slot)s::SMALLINT AS anon_1,
    %(pipeline_execution_id)s::UUID AS anon_2,
    %(topic)s::VARCHAR AS anon_3,
    %(relay_key)s::VARCHAR AS anon_4,
    %(headers)s::VARCHAR AS anon_5,
    %(payload)s::VARCHAR AS anon_6,
    (SELECT clock.now FROM clock) AS anon_7
FROM assigned, subscriber
WHERE
    subscriber.parameter IS NULL
    AND (SELECT count(subscriber.id) AS count_1 FROM subscriber) <= %(most_subscribers)s::INTEGER
    AND assigned.xact_id IS NOT NULL
ORDER BY subscriber.task_name
