UPDATE relays
SET failing_since=NULL, failures=0, next_try_at=NULL
WHERE relays.name = %(relay)s::VARCHAR AND relays.failures > 0
