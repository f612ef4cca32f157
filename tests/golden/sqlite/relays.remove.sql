-- topics
DELETE FROM task_subscriptions
WHERE task_subscriptions.task_name = ('relay.' || :relay) AND task_subscriptions.parameter IS NULL;

-- relay
DELETE FROM relays
WHERE relays.name = :relay;

-- shards
DELETE FROM relay_shards
WHERE relay_shards.relay = :relay;

-- keys
DELETE FROM inbox_messages
WHERE inbox_messages.consumer = ('relay.' || :relay) AND inbox_messages.source = '';

-- gone
DELETE FROM relay_messages
WHERE relay_messages.relay = :relay
RETURNING id
