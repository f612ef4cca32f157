UPDATE workers
SET asked_to=%(asked_to)s::VARCHAR
WHERE
    workers.id = %(worker_id)s::UUID
    AND workers.ended_at IS NULL
    AND workers.asked_to IS DISTINCT FROM %(asked_to)s::VARCHAR
    AND workers.asked_to IS DISTINCT FROM %(asked_to_1)s::VARCHAR
RETURNING workers.id
