WITH
    doomed AS MATERIALIZED (
        SELECT execution_events.sequence_num AS sequence_num
        FROM execution_events
        WHERE
            execution_events.task_execution_id IS NULL
            AND execution_events.lease_token IS NULL
            AND execution_events.created_at < %(before)s::TIMESTAMP WITH TIME ZONE
        LIMIT %(limit)s::BIGINT
    ),
    events AS (
        DELETE FROM execution_events
        WHERE
            execution_events.task_execution_id IS NULL
            AND execution_events.sequence_num = any(array((SELECT doomed.sequence_num FROM doomed)))
        RETURNING execution_events.sequence_num AS id
    )
SELECT events.id
FROM events
