SELECT
    relays.name,
    relays.shards,
    relays.on_refused,
    relays.paused_at,
    relays.pause_reason,
    relays.failing_since,
    relays.failures,
    relays.next_try_at,
    relays.last_error,
    relays.created_at,
    (
        SELECT count(*) AS count_1
        FROM (
            SELECT relay_messages.id AS id
            FROM relay_messages
            WHERE relay_messages.relay = relays.name
            LIMIT :limit
            OFFSET :param_1
        ) AS some
    ) AS messages,
    (
        SELECT relay_messages.created_at
        FROM relay_messages
        WHERE relay_messages.relay = relays.name
        ORDER BY relay_messages.id
        LIMIT 1
        OFFSET :param_2
    ) AS oldest_at,
    (
        SELECT count(*) AS count_2
        FROM (
            SELECT dead_letters.task_execution_id AS task_execution_id
            FROM dead_letters
            WHERE dead_letters.queue = ('relay.' || relays.name)
            LIMIT :limit
            OFFSET :param_3
        ) AS refused
    ) AS dead_letters,
    (
        SELECT count(*) AS count_3
        FROM (
            SELECT 1
            FROM task_outbox
            WHERE task_outbox.queue = ('relay.' || relays.name)
            UNION ALL
            SELECT 1
            FROM task_leases
            WHERE task_leases.queue = ('relay.' || relays.name)
            LIMIT :limit
            OFFSET :param_4
        ) AS redriven
    ) AS redriven
FROM relays
ORDER BY relays.name
