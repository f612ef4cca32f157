UPDATE relays
SET paused_at=:now, pause_reason=:reason
WHERE relays.name = :relay AND relays.paused_at IS NULL
RETURNING name
