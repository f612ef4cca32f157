UPDATE relays
SET paused_at=NULL, pause_reason=NULL, next_try_at=NULL
WHERE relays.name = %(relay)s::VARCHAR
RETURNING relays.name
