WITH named AS (
    SELECT batch.id AS id, batch.ordinal AS ordinal
    FROM unnest(%(named_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
)
SELECT workers.id, workers.label, workers.last_seen_at
FROM workers
WHERE workers.id = any(array((SELECT named.id FROM named)))
