WITH names AS (
    SELECT batch.name AS name, batch.ordinal AS ordinal
    FROM unnest(%(names_name)s::TEXT[]) WITH ORDINALITY AS batch(name, ordinal)
)
SELECT relays.name, relays.shards, relays.on_refused
FROM relays
WHERE relays.name = any(array((SELECT names.name FROM names)))
FOR UPDATE
