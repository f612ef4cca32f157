SELECT DISTINCT relay_messages.relay AS id
FROM relay_messages
WHERE NOT (
    EXISTS (SELECT relays.name FROM relays WHERE relays.name = relay_messages.relay)
)
