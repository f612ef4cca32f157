WITH
    mine AS MATERIALIZED (/* task_pages.mine-1 */),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    page AS MATERIALIZED (
        SELECT looked.id AS id
        FROM (
            SELECT
                mine.id AS id,
                mine.queue AS queue,
                mine.partition_key AS partition_key,
                mine.topic AS topic,
                mine.available_at AS available_at
            FROM mine
            WHERE mine.id >= %(from_id)s::UUID AND mine.id < %(to_id)s::UUID
        ) AS looked
        WHERE
            (%(queue)s::VARCHAR IS NULL OR looked.queue = %(queue)s::VARCHAR)
            AND (
                %(task_name)s::VARCHAR IS NULL
                    OR (
                        SELECT execution.task_name
                        FROM task_executions AS execution
                        WHERE execution.id = looked.id
                    ) = %(task_name)s::VARCHAR
            )
            AND (%(partition_key)s::VARCHAR IS NULL OR looked.partition_key = %(partition_key)s::VARCHAR)
            AND (%(topic)s::VARCHAR IS NULL OR looked.topic = %(topic)s::VARCHAR)
            AND (
                %(worker)s::UUID IS NULL
                    OR (
                        SELECT execution_events.sequence_num
                        FROM execution_events
                        WHERE
                            execution_events.task_execution_id = looked.id
                            AND execution_events.event_type = 'task_claimed'
                            AND execution_events.worker_id = %(worker)s::UUID
                        LIMIT 1
                    ) IS NOT NULL
            )
            AND (
                %(waiting)s::VARCHAR IS NULL
                    OR %(waiting)s::VARCHAR = 'later'
                    AND looked.available_at > (SELECT clock.now FROM clock)
                    OR CASE
                        WHEN (looked.available_at <= (SELECT clock.now FROM clock)) THEN 'due'
                        WHEN (
                            (
                                SELECT execution.retry_at
                                FROM task_executions AS execution
                                WHERE execution.id = looked.id
                            ) IS NULL
                        ) THEN 'delayed'
                        ELSE 'retrying'
                    END = %(waiting)s::VARCHAR
            )
            AND (
                %(exception)s::VARCHAR IS NULL
                    OR substr(
                        (
                            SELECT execution.last_error
                            FROM task_executions AS execution
                            WHERE execution.id = looked.id
                        ) || ':',
                        1,
                        length(%(exception)s::VARCHAR) + 1
                    ) = (%(exception)s::VARCHAR || ':')
                    OR substr(
                        (
                            SELECT execution.last_error
                            FROM task_executions AS execution
                            WHERE execution.id = looked.id
                        ) || ':',
                        1,
                        length(%(exception_end)s::VARCHAR) + 1
                    ) = (%(exception_end)s::VARCHAR || ':')
            )
            AND (
                %(argument_first)s::VARCHAR IS NULL
                    OR replace(
                        replace(
                            replace(
                                (
                                    SELECT execution.args
                                    FROM task_executions AS execution
                                    WHERE execution.id = looked.id
                                ),
                                ' ',
                                ''
                            ),
                            %(argument_first)s::VARCHAR,
                            ''
                        ),
                        %(argument_last)s::VARCHAR,
                        ''
                    ) != replace(
                        (
                            SELECT execution.args
                            FROM task_executions AS execution
                            WHERE execution.id = looked.id
                        ),
                        ' ',
                        ''
                    )
            )
        ORDER BY looked.id
        LIMIT %(limit)s::BIGINT
    )
SELECT
    task_executions.id,
    task_executions.pipeline_execution_id,
    task_executions.task_name,
    task_executions.queue,
    task_executions.topic,
    task_executions.partition_key,
    task_executions.position,
    task_executions.priority,
    task_executions.args,
    task_executions.headers,
    task_executions.status,
    task_executions.attempt,
    task_executions.max_attempts,
    task_executions.recovery_attempts,
    task_executions.lease_seconds,
    task_executions.timeout_seconds,
    task_executions.lease_token,
    task_executions.worker_id,
    task_executions.cancel_requested_at,
    task_executions.on_dead_letter,
    task_executions.expires_at,
    task_executions.retry_at,
    task_executions.first_started_at,
    task_executions.started_at,
    task_executions.completed_at,
    task_executions.created_at,
    task_executions.updated_at,
    task_executions.last_error,
    task_executions.result,
    task_leases.lease_expires_at
FROM task_executions
LEFT OUTER JOIN task_leases ON task_leases.task_execution_id = task_executions.id
WHERE task_executions.id = any(array((SELECT page.id FROM page)))
ORDER BY task_executions.id DESC
