SELECT relays.name FROM relays LIMIT 1
