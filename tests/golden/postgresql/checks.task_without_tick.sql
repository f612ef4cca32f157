SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.headers LIKE '%%"outboxq-tick"%%'
    AND task_executions.status != 'Cancelled'
    AND CAST(
        (
            CAST(
                CASE WHEN CASE WHEN (
                    task_executions.headers ~ '^\{(?:"[^"\\]*": ?(?:"[^"\\]*"|-?[0-9.]+|true|false|null),? ?)*\}$'
                ) THEN true ELSE (
                    regexp_replace(task_executions.headers, '"([^"\\]|\\.)*"', '0', 'g') ~ '^[[:space:]]*\{([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)*\}[[:space:]]*$'
                )
                    AND length(
                        translate(
                            regexp_replace(task_executions.headers, '"([^"\\]|\\.)*"', '0', 'g'),
                            '{[',
                            ''
                        )
                    ) = length(
                        translate(
                            regexp_replace(task_executions.headers, '"([^"\\]|\\.)*"', '0', 'g'),
                            '}]',
                            ''
                        )
                    )
                    END THEN task_executions.headers
                    END AS JSONB
            ) ->> 'outboxq-tick'
        ) AS TIMESTAMP WITH TIME ZONE
    ) IS NOT NULL
    AND NOT (
        EXISTS (
            SELECT schedule_ticks.tick
            FROM schedule_ticks
            WHERE schedule_ticks.task_execution_id = task_executions.id
        )
    )
