WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    given AS (
        SELECT
            batch.queue AS queue,
            batch.due AS due,
            batch.delayed AS delayed,
            batch.running AS running,
            batch.failed AS failed,
            batch.oldest_due_at AS oldest_due_at,
            batch.exact AS exact,
            batch.ordinal AS ordinal
        FROM unnest(
            %(given_queue)s::TEXT[],
            %(given_due)s::BIGINT[],
            %(given_delayed)s::BIGINT[],
            %(given_running)s::BIGINT[],
            %(given_failed)s::BIGINT[],
            %(given_oldest_due_at)s::TIMESTAMP WITH TIME ZONE[],
            %(given_exact)s::BOOLEAN[]
        ) WITH ORDINALITY AS batch(queue, due, delayed, running, failed, oldest_due_at, exact, ordinal)
    )
INSERT INTO queue_samples (at, queue, due, delayed, running, failed, oldest_due_at, exact)
SELECT
    (SELECT clock.now FROM clock) AS anon_1,
    given.queue,
    given.due,
    given.delayed,
    given.running,
    given.failed,
    given.oldest_due_at,
    given.exact
FROM given
WHERE given.queue IS NOT NULL
ON CONFLICT DO NOTHING
