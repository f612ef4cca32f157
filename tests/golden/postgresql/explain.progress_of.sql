WITH asked AS (
    SELECT batch.id AS id, batch.ordinal AS ordinal
    FROM unnest(%(asked_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
)
SELECT task_leases.task_execution_id AS id, task_leases.progress, task_leases.progress_note
FROM task_leases
WHERE
    task_leases.task_execution_id = any(array((SELECT asked.id FROM asked)))
    AND task_leases.progress IS NOT NULL
