WITH
    mine AS MATERIALIZED (/* task_pages.mine-1 */),
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
            WHERE mine.id >= :from_id AND mine.id < :to_id
        ) AS looked
        WHERE
            (:queue IS NULL OR looked.queue = :queue)
            AND (
                :task_name IS NULL
                    OR (
                        SELECT execution.task_name
                        FROM task_executions AS execution
                        WHERE execution.id = looked.id
                    ) = :task_name
            )
            AND (:partition_key IS NULL OR looked.partition_key = :partition_key)
            AND (:topic IS NULL OR looked.topic = :topic)
            AND (
                :worker IS NULL
                    OR (
                        SELECT execution_events.sequence_num
                        FROM execution_events
                        WHERE
                            execution_events.task_execution_id = looked.id
                            AND execution_events.event_type = 'task_claimed'
                            AND execution_events.worker_id = :worker
                        LIMIT 1
                        OFFSET :param_1
                    ) IS NOT NULL
            )
            AND (
                :waiting IS NULL
                    OR :waiting = 'later'
                    AND looked.available_at > :now
                    OR CASE
                        WHEN (looked.available_at <= :now) THEN 'due'
                        WHEN (
                            (
                                SELECT execution.retry_at
                                FROM task_executions AS execution
                                WHERE execution.id = looked.id
                            ) IS NULL
                        ) THEN 'delayed'
                        ELSE 'retrying'
                    END = :waiting
            )
            AND (
                :exception IS NULL
                    OR substr(
                        (
                            SELECT execution.last_error
                            FROM task_executions AS execution
                            WHERE execution.id = looked.id
                        ) || ':',
                        1,
                        length(:exception) + 1
                    ) = (:exception || ':')
                    OR substr(
                        (
                            SELECT execution.last_error
                            FROM task_executions AS execution
                            WHERE execution.id = looked.id
                        ) || ':',
                        1,
                        length(:exception_end) + 1
                    ) = (:exception_end || ':')
            )
            AND (
                :argument_first IS NULL
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
                            :argument_first,
                            ''
                        ),
                        :argument_last,
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
        LIMIT :limit
        OFFSET :param_2
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
WHERE task_executions.id IN (SELECT page.id FROM page)
ORDER BY task_executions.id DESC
