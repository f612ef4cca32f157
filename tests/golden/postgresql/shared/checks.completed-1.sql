SELECT
    read.id AS id,
    read.sequence_num AS sequence_num,
    read.name AS name,
    read.completes AS completes,
    read.lasts AS lasts,
    read.was_held AS was_held,
    read.latest AS latest
FROM (
    SELECT
        rows.id AS id,
        rows.sequence_num AS sequence_num,
        rows.name AS name,
        rows.completes AS completes,
        min(rows.rewound_from) OVER (PARTITION BY rows.id ORDER BY rows.sequence_num DESC) IS NULL
            OR min(rows.rewound_from) OVER (PARTITION BY rows.id ORDER BY rows.sequence_num DESC) > rows.number AS lasts,
        max(rows.begun) OVER (PARTITION BY rows.id ORDER BY rows.sequence_num) IS NOT NULL
            AND (
                max(rows.ended) OVER (PARTITION BY rows.id ORDER BY rows.sequence_num) IS NULL
                    OR max(rows.begun) OVER (PARTITION BY rows.id ORDER BY rows.sequence_num) > max(
                        rows.ended
                    ) OVER (PARTITION BY rows.id ORDER BY rows.sequence_num)
            ) AS was_held,
        max(rows.sequence_num) OVER (PARTITION BY rows.id, rows.name) AS latest
    FROM (
        SELECT
            execution_events.task_execution_id AS id,
            execution_events.sequence_num AS sequence_num,
            execution_events.lease_token IS NULL
                AND execution_events.event_type = 'step_completed' AS completes,
            CASE
                WHEN (execution_events.lease_token IS NULL AND execution_events.event_type = 'task_rewound') THEN CAST(
                    CAST(execution_events.event_data AS JSONB) ->> 'number' AS INTEGER
                )
            END AS rewound_from,
            CASE
                WHEN (execution_events.lease_token IS NULL AND execution_events.event_type = 'step_completed') THEN CAST(
                    CAST(execution_events.event_data AS JSONB) ->> 'number' AS INTEGER
                )
            END AS number,
            CASE
                WHEN (execution_events.lease_token IS NULL AND execution_events.event_type = 'step_completed') THEN CAST(
                    execution_events.event_data AS JSONB
                ) ->> 'step'
            END AS name,
            CASE
                WHEN (execution_events.event_type = 'task_claimed') THEN execution_events.sequence_num
            END AS begun,
            CASE
                WHEN (
                    execution_events.event_type != 'task_claimed' AND execution_events.lease_token IS NOT NULL
                ) THEN execution_events.sequence_num
            END AS ended
        FROM execution_events
        WHERE
            execution_events.task_execution_id IN (
                SELECT execution_events.task_execution_id
                FROM execution_events
                WHERE execution_events.lease_token IS NULL AND execution_events.event_type = 'step_completed'
            )
            AND (
                execution_events.lease_token IS NULL
                    AND execution_events.event_type = 'step_completed'
                    OR execution_events.lease_token IS NULL
                    AND execution_events.event_type = 'task_rewound'
                    OR execution_events.lease_token IS NOT NULL
            )
    ) AS rows
) AS read
WHERE read.completes
