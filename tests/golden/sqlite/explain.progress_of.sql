WITH asked AS MATERIALIZED (
    SELECT asked_rows."key" AS ordinal, asked_rows.value AS id
    FROM json_each(:asked) AS asked_rows
)
SELECT task_leases.task_execution_id AS id, task_leases.progress, task_leases.progress_note
FROM task_leases
WHERE
    task_leases.task_execution_id IN (SELECT asked.id FROM asked)
    AND task_leases.progress IS NOT NULL
