UPDATE relays
SET paused_at=coalesce(relays.paused_at, :now), pause_reason=:reason
WHERE relays.name = :relay
RETURNING name
