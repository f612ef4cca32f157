SELECT task_executions.id
FROM schedule_ticks
JOIN task_executions ON task_executions.id = schedule_ticks.task_execution_id
WHERE
    (
        CAST(
            CASE WHEN CASE WHEN (
                task_executions.headers ~ '^\{(?:"[^"\\]*": ?(?:"[^"\\]*"|-?[0-9.]+|true|false|null),? ?)*\}$'
            ) THEN true ELSE (
                regexp_replace(task_executions.headers, '"([^"\\]|\\.)*"', '0', 'g') ~ '^[[:space:]]*\{([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)*\}[[:space:]]*$'
            )
                AND length(
                    translate(regexp_replace(task_executions.headers, '"([^"\\]|\\.)*"', '0', 'g'), '{[', '')
                ) = length(
                    translate(regexp_replace(task_executions.headers, '"([^"\\]|\\.)*"', '0', 'g'), '}]', '')
                )
                END THEN task_executions.headers
                END AS JSONB
        ) ->> 'outboxq-schedule'
    ) IS DISTINCT FROM schedule_ticks.schedule
    OR CAST(
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
    ) IS DISTINCT FROM schedule_ticks.tick
