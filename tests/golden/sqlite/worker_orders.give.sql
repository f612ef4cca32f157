UPDATE workers
SET asked_to=:asked_to
WHERE
    workers.id = :worker_id
    AND workers.ended_at IS NULL
    AND workers.asked_to IS NOT :asked_to
    AND workers.asked_to IS NOT :asked_to_1
RETURNING id
