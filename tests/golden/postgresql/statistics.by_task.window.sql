WITH queues AS (
    SELECT batch.queue AS queue, batch.ordinal AS ordinal
    FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
)
SELECT
    ranked.queue,
    ranked.task_name,
    count(*) FILTER (WHERE ranked.event_type IN ('task_completed')) AS completed,
    count(*) FILTER (WHERE ranked.event_type IN ('task_abandoned', 'task_failed')) AS failures,
    count(*) FILTER (WHERE ranked.event_type IN ('task_cancelled', 'task_discarded', 'task_expired')) AS cancelled,
    count(*) FILTER (WHERE ranked.event_type IN ('task_retry_scheduled')) AS retries,
    max(ranked.to_start) FILTER (
        WHERE ranked.ended = %(ended_1)s::INTEGER
            AND ranked.start_rank = (ranked.tasks * %(tasks_1)s::INTEGER + %(param_1)s::INTEGER) / %(param_2)s::INTEGER
    ) AS start_p50,
    max(ranked.to_start) FILTER (
        WHERE ranked.ended = %(ended_2)s::INTEGER
            AND ranked.start_rank = (ranked.tasks * %(tasks_2)s::INTEGER + %(param_3)s::INTEGER) / %(param_4)s::INTEGER
    ) AS start_p95,
    max(ranked.to_start) FILTER (
        WHERE ranked.ended = %(ended_3)s::INTEGER
            AND ranked.start_rank = (ranked.tasks * %(tasks_3)s::INTEGER + %(param_5)s::INTEGER) / %(param_6)s::INTEGER
    ) AS start_p99,
    max(ranked.to_complete) FILTER (
        WHERE ranked.ended = %(ended_4)s::INTEGER
            AND ranked.complete_rank = (ranked.tasks * %(tasks_4)s::INTEGER + %(param_7)s::INTEGER) / %(param_8)s::INTEGER
    ) AS complete_p50,
    max(ranked.to_complete) FILTER (
        WHERE ranked.ended = %(ended_5)s::INTEGER
            AND ranked.complete_rank = (ranked.tasks * %(tasks_5)s::INTEGER + %(param_9)s::INTEGER) / %(param_10)s::INTEGER
    ) AS complete_p95,
    max(ranked.to_complete) FILTER (
        WHERE ranked.ended = %(ended_6)s::INTEGER
            AND ranked.complete_rank = (ranked.tasks * %(tasks_6)s::INTEGER + %(param_11)s::INTEGER) / %(param_12)s::INTEGER
    ) AS complete_p99
FROM (
    SELECT
        happened.queue AS queue,
        happened.task_name AS task_name,
        happened.event_type AS event_type,
        happened.ended AS ended,
        happened.to_start AS to_start,
        happened.to_complete AS to_complete,
        count(*) OVER (PARTITION BY happened.queue, happened.task_name, happened.ended) AS tasks,
        row_number() OVER (
            PARTITION BY happened.queue, happened.task_name, happened.ended
            ORDER BY happened.to_start
        ) AS start_rank,
        row_number() OVER (
            PARTITION BY happened.queue, happened.task_name, happened.ended
            ORDER BY happened.to_complete
        ) AS complete_rank
    FROM (
        SELECT
            task_executions.queue AS queue,
            task_executions.task_name AS task_name,
            execution_events.event_type AS event_type,
            CASE
                WHEN (execution_events.event_type IN ('task_abandoned', 'task_completed', 'task_failed')) THEN %(param_13)s::INTEGER
                ELSE %(param_14)s::INTEGER
            END AS ended,
            coalesce(
                CASE
                    WHEN (
                        isfinite(task_executions.created_at)
                            AND isfinite(
                                coalesce(task_executions.first_started_at, execution_events.created_at)
                            )
                    ) THEN CAST(
                        EXTRACT(
                            epoch
                            FROM coalesce(task_executions.first_started_at, execution_events.created_at) - task_executions.created_at
                        ) * %(param_15)s::INTEGER AS BIGINT
                    )
                END,
                0
            ) AS to_start,
            coalesce(
                CASE
                    WHEN (isfinite(task_executions.created_at) AND isfinite(execution_events.created_at)) THEN CAST(
                        EXTRACT(epoch FROM execution_events.created_at - task_executions.created_at) * %(param_16)s::INTEGER AS BIGINT
                    )
                END,
                0
            ) AS to_complete
        FROM execution_events
        JOIN task_executions ON task_executions.id = execution_events.task_execution_id
        WHERE
            execution_events.sequence_num >= %(first)s::BIGINT
            AND execution_events.created_at >= %(since)s::TIMESTAMP WITH TIME ZONE
            AND execution_events.event_type IN (
                'task_abandoned',
                'task_cancelled',
                'task_completed',
                'task_discarded',
                'task_expired',
                'task_failed',
                'task_retry_scheduled'
            )
            AND (
                %(every_queue)s
                    OR task_executions.queue = any(array((SELECT queues.queue FROM queues)))
            )
    ) AS happened
) AS ranked
GROUP BY ranked.queue, ranked.task_name
