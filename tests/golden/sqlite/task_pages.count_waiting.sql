SELECT count(*) AS tasks
FROM (
    SELECT 1 AS one
    FROM (
        SELECT
            task_outbox.task_execution_id AS id,
            task_outbox.queue AS queue,
            task_outbox.partition_key AS partition_key,
            task_outbox.topic AS topic,
            task_outbox.available_at AS available_at
        FROM task_outbox
        WHERE task_outbox.task_execution_id >= :from_id AND task_outbox.task_execution_id < :to_id
        LIMIT :scan
        OFFSET :param_1
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
            :head IS NULL
                OR (
                    SELECT execution_events.sequence_num
                    FROM execution_events
                    WHERE
                        execution_events.task_execution_id = looked.id
                        AND execution_events.lease_token IS NULL
                        AND execution_events.event_type IN (
                            'task_created',
                            'task_requeued',
                            'task_retry_scheduled'
                        )
                        AND execution_events.sequence_num > :head
                    LIMIT 1
                    OFFSET :param_2
                ) IS NULL
                AND (
                    :only_ready = 0
                        OR (
                            SELECT execution_events.sequence_num
                            FROM execution_events
                            WHERE
                                execution_events.task_execution_id = looked.id
                                AND execution_events.event_type != 'task_claimed'
                                AND execution_events.lease_token IS NOT NULL
                                AND execution_events.event_type IN (
                                    'task_retry_scheduled',
                                    'task_reset',
                                    'task_released',
                                    'task_snoozed'
                                )
                                AND execution_events.sequence_num > :head
                            LIMIT 1
                            OFFSET :param_3
                        ) IS NULL
                )
                AND (
                    :only_running = 0
                        OR (
                            SELECT execution_events.sequence_num
                            FROM execution_events
                            WHERE
                                execution_events.task_execution_id = looked.id
                                AND execution_events.event_type = 'task_claimed'
                                AND execution_events.sequence_num > :head
                            LIMIT 1
                            OFFSET :param_4
                        ) IS NULL
                )
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
    LIMIT :limit
    OFFSET :param_5
) AS some
