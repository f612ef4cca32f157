-- doomed
SELECT task_batches.id
FROM task_batches
WHERE
    task_batches.completed_at < :older
    AND NOT (
        EXISTS (
            SELECT task_executions.id
            FROM task_executions
            WHERE
                task_executions.pipeline_execution_id = task_batches.id
                AND task_executions.pipeline_execution_id != task_executions.id
        )
    )
ORDER BY task_batches.id
LIMIT :limit
OFFSET :param_1;

-- gone
WITH doomed AS MATERIALIZED (
    SELECT doomed_rows."key" AS ordinal, doomed_rows.value AS id
    FROM json_each(:doomed) AS doomed_rows
)
DELETE FROM task_batches
WHERE task_batches.id IN (SELECT doomed.id FROM doomed)
RETURNING id
