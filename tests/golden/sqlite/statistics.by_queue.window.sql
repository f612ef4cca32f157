WITH queues AS MATERIALIZED (
    SELECT queues_rows."key" AS ordinal, queues_rows.value AS queue
    FROM json_each(:queues) AS queues_rows
)
SELECT
    ranked.queue,
    count(*) FILTER (WHERE ranked.event_type IN ('task_completed')) AS completed,
    count(*) FILTER (WHERE ranked.event_type IN ('task_abandoned', 'task_failed')) AS failures,
    count(*) FILTER (WHERE ranked.event_type IN ('task_cancelled', 'task_discarded', 'task_expired')) AS cancelled,
    count(*) FILTER (WHERE ranked.event_type IN ('task_retry_scheduled')) AS retries,
    max(ranked.to_start) FILTER (
        WHERE ranked.ended = :ended_1 AND ranked.start_rank = (ranked.tasks * :tasks_1 + :param_1) / :param_2
    ) AS start_p50,
    max(ranked.to_start) FILTER (
        WHERE ranked.ended = :ended_2 AND ranked.start_rank = (ranked.tasks * :tasks_2 + :param_3) / :param_4
    ) AS start_p95,
    max(ranked.to_start) FILTER (
        WHERE ranked.ended = :ended_3 AND ranked.start_rank = (ranked.tasks * :tasks_3 + :param_5) / :param_6
    ) AS start_p99,
    max(ranked.to_complete) FILTER (
        WHERE ranked.ended = :ended_4
            AND ranked.complete_rank = (ranked.tasks * :tasks_4 + :param_7) / :param_8
    ) AS complete_p50,
    max(ranked.to_complete) FILTER (
        WHERE ranked.ended = :ended_5
            AND ranked.complete_rank = (ranked.tasks * :tasks_5 + :param_9) / :param_10
    ) AS complete_p95,
    max(ranked.to_complete) FILTER (
        WHERE ranked.ended = :ended_6
            AND ranked.complete_rank = (ranked.tasks * :tasks_6 + :param_11) / :param_12
    ) AS complete_p99
FROM (
    SELECT
        happened.queue AS queue,
        happened.event_type AS event_type,
        happened.ended AS ended,
        happened.to_start AS to_start,
        happened.to_complete AS to_complete,
        count(*) OVER (PARTITION BY happened.queue, happened.ended) AS tasks,
        row_number() OVER (PARTITION BY happened.queue, happened.ended ORDER BY happened.to_start) AS start_rank,
        row_number() OVER (PARTITION BY happened.queue, happened.ended ORDER BY happened.to_complete) AS complete_rank
    FROM (
        SELECT
            task_executions.queue AS queue,
            execution_events.event_type AS event_type,
            CASE
                WHEN (execution_events.event_type IN ('task_abandoned', 'task_completed', 'task_failed')) THEN :param_13
                ELSE :param_14
            END AS ended,
            coalesce(
                (
                    CAST(
                        strftime(
                            :strftime_1,
                            substr(
                                coalesce(task_executions.first_started_at, execution_events.created_at),
                                :substr_1,
                                :substr_2
                            )
                        ) AS INTEGER
                    ) * :param_15 + CAST(
                        substr(
                            coalesce(task_executions.first_started_at, execution_events.created_at),
                            :substr_3,
                            :substr_4
                        ) AS INTEGER
                    )
                ) - (
                    CAST(
                        strftime(:strftime_2, substr(task_executions.created_at, :substr_5, :substr_6)) AS INTEGER
                    ) * :param_16 + CAST(substr(task_executions.created_at, :substr_7, :substr_8) AS INTEGER)
                ),
                0
            ) AS to_start,
            coalesce(
                (
                    CAST(
                        strftime(:strftime_3, substr(execution_events.created_at, :substr_9, :substr_10)) AS INTEGER
                    ) * :param_17 + CAST(
                        substr(execution_events.created_at, :substr_11, :substr_12) AS INTEGER
                    )
                ) - (
                    CAST(
                        strftime(:strftime_4, substr(task_executions.created_at, :substr_13, :substr_14)) AS INTEGER
                    ) * :param_18 + CAST(
                        substr(task_executions.created_at, :substr_15, :substr_16) AS INTEGER
                    )
                ),
                0
            ) AS to_complete
        FROM execution_events
        JOIN task_executions ON task_executions.id = execution_events.task_execution_id
        WHERE
            execution_events.sequence_num >= :first
            AND execution_events.created_at >= :since
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
                :every_queue = 1
                    OR task_executions.queue IN (SELECT queues.queue FROM queues)
            )
    ) AS happened
) AS ranked
GROUP BY ranked.queue
