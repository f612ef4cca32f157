SELECT found.id, found.events_without_task, found.pipeline_differs_from_events
FROM (
    SELECT
        DISTINCT execution_events.task_execution_id AS id,
        coalesce(task_executions.id IS NULL, false) AS events_without_task,
        coalesce(task_executions.id IS NOT NULL, false) AS pipeline_differs_from_events
    FROM execution_events
    LEFT OUTER JOIN task_executions ON task_executions.id = execution_events.task_execution_id
    WHERE
        execution_events.task_execution_id IS NOT NULL
        AND (
            task_executions.id IS NULL
                OR task_executions.pipeline_execution_id != execution_events.pipeline_execution_id
        )
) AS found
WHERE found.events_without_task OR found.pipeline_differs_from_events
