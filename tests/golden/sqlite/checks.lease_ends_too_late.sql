SELECT task_leases.task_execution_id AS id
FROM task_leases
WHERE task_leases.lease_expires_at > (
    strftime(
        :strftime_1,
        (
            CAST(
                strftime(
                    :strftime_2,
                    substr(
                        CASE
                            WHEN (
                                (
                                    SELECT newest.created_at
                                    FROM execution_events AS newest
                                    ORDER BY newest.sequence_num DESC
                                    LIMIT :param_1
                                    OFFSET :param_2
                                ) > :now
                            ) THEN (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_1
                                OFFSET :param_3
                            )
                            ELSE :now
                        END,
                        :substr_1,
                        :substr_2
                    )
                ) AS INTEGER
            ) * :param_4 + CAST(
                substr(
                    CASE
                        WHEN (
                            (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_1
                                OFFSET :param_5
                            ) > :now
                        ) THEN (
                            SELECT newest.created_at
                            FROM execution_events AS newest
                            ORDER BY newest.sequence_num DESC
                            LIMIT :param_1
                            OFFSET :param_6
                        )
                        ELSE :now
                    END,
                    :substr_3,
                    :substr_4
                ) AS INTEGER
            ) + CAST(
                round(
                    (
                        CASE
                            WHEN (
                                coalesce(
                                    (
                                        SELECT CAST(
                                            json_extract(execution_events.event_data, '$.lease_seconds') AS DOUBLE
                                        ) AS json_extract_1
                                        FROM execution_events
                                        WHERE
                                            execution_events.task_execution_id = task_leases.task_execution_id
                                            AND execution_events.lease_token = task_leases.lease_token
                                            AND execution_events.event_type = 'task_claimed'
                                    ),
                                    (
                                        SELECT task_executions.lease_seconds
                                        FROM task_executions
                                        WHERE task_executions.id = task_leases.task_execution_id
                                    )
                                ) > 3153600000.0
                            ) THEN 3153600000.0
                            ELSE coalesce(
                                (
                                    SELECT CAST(
                                        json_extract(execution_events.event_data, '$.lease_seconds') AS DOUBLE
                                    ) AS json_extract_1
                                    FROM execution_events
                                    WHERE
                                        execution_events.task_execution_id = task_leases.task_execution_id
                                        AND execution_events.lease_token = task_leases.lease_token
                                        AND execution_events.event_type = 'task_claimed'
                                ),
                                (
                                    SELECT task_executions.lease_seconds
                                    FROM task_executions
                                    WHERE task_executions.id = task_leases.task_execution_id
                                )
                            )
                        END + 86400.0
                    ) * :param_7
                ) AS INTEGER
            )
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(
                strftime(
                    :strftime_2,
                    substr(
                        CASE
                            WHEN (
                                (
                                    SELECT newest.created_at
                                    FROM execution_events AS newest
                                    ORDER BY newest.sequence_num DESC
                                    LIMIT :param_1
                                    OFFSET :param_8
                                ) > :now
                            ) THEN (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_1
                                OFFSET :param_9
                            )
                            ELSE :now
                        END,
                        :substr_1,
                        :substr_2
                    )
                ) AS INTEGER
            ) * :param_4 + CAST(
                substr(
                    CASE
                        WHEN (
                            (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_1
                                OFFSET :param_10
                            ) > :now
                        ) THEN (
                            SELECT newest.created_at
                            FROM execution_events AS newest
                            ORDER BY newest.sequence_num DESC
                            LIMIT :param_1
                            OFFSET :param_11
                        )
                        ELSE :now
                    END,
                    :substr_3,
                    :substr_4
                ) AS INTEGER
            ) + CAST(
                round(
                    (
                        CASE
                            WHEN (
                                coalesce(
                                    (
                                        SELECT CAST(
                                            json_extract(execution_events.event_data, '$.lease_seconds') AS DOUBLE
                                        ) AS json_extract_1
                                        FROM execution_events
                                        WHERE
                                            execution_events.task_execution_id = task_leases.task_execution_id
                                            AND execution_events.lease_token = task_leases.lease_token
                                            AND execution_events.event_type = 'task_claimed'
                                    ),
                                    (
                                        SELECT task_executions.lease_seconds
                                        FROM task_executions
                                        WHERE task_executions.id = task_leases.task_execution_id
                                    )
                                ) > 3153600000.0
                            ) THEN 3153600000.0
                            ELSE coalesce(
                                (
                                    SELECT CAST(
                                        json_extract(execution_events.event_data, '$.lease_seconds') AS DOUBLE
                                    ) AS json_extract_1
                                    FROM execution_events
                                    WHERE
                                        execution_events.task_execution_id = task_leases.task_execution_id
                                        AND execution_events.lease_token = task_leases.lease_token
                                        AND execution_events.event_type = 'task_claimed'
                                ),
                                (
                                    SELECT task_executions.lease_seconds
                                    FROM task_executions
                                    WHERE task_executions.id = task_leases.task_execution_id
                                )
                            )
                        END + 86400.0
                    ) * :param_7
                ) AS INTEGER
            )
        ) % 1000000
    )
)
