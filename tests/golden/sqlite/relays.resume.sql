UPDATE relays
SET paused_at=NULL, pause_reason=NULL, next_try_at=NULL
WHERE relays.name = :relay AND (relays.paused_at IS NOT NULL OR relays.next_try_at IS NOT NULL)
RETURNING name
