SELECT count(*) AS tasks
FROM (
    SELECT 1 AS one
    FROM dead_letters
    WHERE
        dead_letters.failed_at >= %(since)s::TIMESTAMP WITH TIME ZONE
        AND dead_letters.failed_at < %(until)s::TIMESTAMP WITH TIME ZONE
        AND (%(queue)s::VARCHAR IS NULL OR dead_letters.queue = %(queue)s::VARCHAR)
        AND (%(task_name)s::VARCHAR IS NULL OR dead_letters.task_name = %(task_name)s::VARCHAR)
        AND (%(topic)s::VARCHAR IS NULL OR dead_letters.topic = %(topic)s::VARCHAR)
        AND (%(partition_key)s::VARCHAR IS NULL OR dead_letters.partition_key = %(partition_key)s::VARCHAR)
        AND (
            %(exception)s::VARCHAR IS NULL
                OR dead_letters.exception = %(exception)s::VARCHAR
                OR substr(
                    dead_letters.exception,
                    length(dead_letters.exception) - length(%(exception)s::VARCHAR)
                ) = %(exception_end)s::VARCHAR
        )
        AND (
            %(head)s::BIGINT IS NULL
                OR (
                    SELECT execution_events.sequence_num
                    FROM execution_events
                    WHERE
                        execution_events.task_execution_id = dead_letters.task_execution_id
                        AND execution_events.lease_token IS NULL
                        AND execution_events.event_type IN ('task_failed', 'task_abandoned')
                        AND (
                            execution_events.sequence_num > %(head)s::BIGINT
                                OR (
                                    CAST(CAST(execution_events.xact_id AS TEXT) AS BIGINT) <@ CAST(
                                        %(open)s::VARCHAR AS INT8MULTIRANGE
                                    )
                                )
                        )
                    LIMIT 1
                ) IS NULL
                AND (
                    SELECT execution_events.sequence_num
                    FROM execution_events
                    WHERE
                        execution_events.task_execution_id = dead_letters.task_execution_id
                        AND execution_events.event_type != 'task_claimed'
                        AND execution_events.lease_token IS NOT NULL
                        AND execution_events.event_type IN ('task_failed', 'task_abandoned')
                        AND (
                            execution_events.sequence_num > %(head)s::BIGINT
                                OR (
                                    CAST(CAST(execution_events.xact_id AS TEXT) AS BIGINT) <@ CAST(
                                        %(open)s::VARCHAR AS INT8MULTIRANGE
                                    )
                                )
                        )
                    LIMIT 1
                ) IS NULL
        )
    LIMIT %(limit)s::BIGINT
) AS "some"
