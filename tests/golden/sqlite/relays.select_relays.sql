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
    relays.created_at
FROM relays
ORDER BY relays.name
