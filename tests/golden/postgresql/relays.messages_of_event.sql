WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT
    relay_messages.id,
    relay_messages.relay,
    relay_messages.topic,
    relay_messages.partition_key,
    relay_messages.slot %% relays.shards AS shard,
    relay_shards.lease_expires_at,
    relays.shards,
    relays.on_refused,
    relays.paused_at,
    relays.pause_reason,
    relays.failing_since,
    relays.next_try_at,
    relays.last_error,
    coalesce(
        (
            SELECT partition_claims.task_execution_id
            FROM partition_claims
            WHERE
                partition_claims.queue = ('relay.' || relay_messages.relay)
                AND partition_claims.partition_key = relay_messages.partition_key
            LIMIT 1
        ),
        (
            SELECT task_outbox.task_execution_id
            FROM task_outbox
            WHERE
                task_outbox.queue = ('relay.' || relay_messages.relay)
                AND task_outbox.partition_key = relay_messages.partition_key
            LIMIT 1
        )
    ) AS holding,
    (SELECT clock.now FROM clock) AS now
FROM relay_messages
LEFT OUTER JOIN relays ON relays.name = relay_messages.relay
LEFT OUTER JOIN relay_shards ON relay_shards.relay = relay_messages.relay
    AND relay_shards.shard = relay_messages.slot %% relays.shards
WHERE relay_messages.event_id = %(event_id)s::UUID
ORDER BY relay_messages.relay
