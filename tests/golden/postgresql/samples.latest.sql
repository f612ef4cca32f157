WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT
    queue_samples.at,
    queue_samples.queue,
    queue_samples.due,
    queue_samples.delayed,
    queue_samples.running,
    queue_samples.failed,
    queue_samples.oldest_due_at,
    queue_samples.exact
FROM queue_samples
WHERE queue_samples.at = (
    SELECT max(queue_samples.at) AS max_1
    FROM queue_samples
    WHERE queue_samples.at <= (SELECT clock.now FROM clock)
)
