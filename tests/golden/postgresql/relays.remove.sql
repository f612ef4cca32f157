WITH
    topics AS (
        DELETE FROM task_subscriptions
        WHERE
            task_subscriptions.task_name = ('relay.' || %(relay)s::VARCHAR)
            AND task_subscriptions.parameter IS NULL
    ),
    relay AS (DELETE FROM relays WHERE relays.name = %(relay)s::VARCHAR),
    shards AS (DELETE FROM relay_shards WHERE relay_shards.relay = %(relay)s::VARCHAR),
    keys AS (
        DELETE FROM inbox_messages
        WHERE inbox_messages.consumer = ('relay.' || %(relay)s::VARCHAR) AND inbox_messages.source = ''
    ),
    gone AS (
        DELETE FROM relay_messages
        WHERE relay_messages.relay = %(relay)s::VARCHAR
        RETURNING relay_messages.id
    )
SELECT gone.id
FROM gone
