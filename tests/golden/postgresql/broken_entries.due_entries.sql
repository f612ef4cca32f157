WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT task_outbox.id AS entry_id
FROM task_outbox
WHERE
    task_outbox.id > %(after)s::BIGINT
    AND task_outbox.available_at <= (SELECT clock.now FROM clock)
ORDER BY task_outbox.id
LIMIT %(limit)s::BIGINT
