WITH RECURSIVE
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    pairs(queue, priority) AS (/* live.pairs-1: param_1, param_2, anon_1 */),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    )
SELECT found.queue, found.available_at, found.id
FROM (
    SELECT plain_due.queue AS queue, plain_due.available_at AS available_at, plain_due.task_execution_id AS id
    FROM pairs
    JOIN LATERAL (/* live.plain_due-1 */) AS plain_due ON true
    UNION ALL
    SELECT keyed_due.queue AS queue, keyed_due.available_at AS available_at, keyed_due.task_execution_id AS id
    FROM queues
    JOIN LATERAL (/* live.keyed_due-1 */) AS keyed_due ON true
) AS found
