SELECT lost.id
FROM (
    SELECT task_executions.pipeline_execution_id AS id
    FROM task_executions
    WHERE
        task_executions.pipeline_execution_id != task_executions.id
        AND substr(replace(CAST(task_executions.pipeline_execution_id AS TEXT), '-', ''), 13, 1) = '8'
        AND substr(replace(CAST(task_executions.pipeline_execution_id AS TEXT), '-', ''), 1, 1) IN (
            '8',
            '9',
            'a',
            'b',
            'c',
            'd',
            'e',
            'f'
        )
    EXCEPT
    SELECT task_batches.id AS id
    FROM task_batches
    EXCEPT
    SELECT execution_events.pipeline_execution_id AS pipeline_execution_id
    FROM execution_events
    WHERE
        execution_events.task_execution_id IS NULL
        AND execution_events.lease_token IS NULL
        AND execution_events.event_type = 'batch_completed'
) AS lost
