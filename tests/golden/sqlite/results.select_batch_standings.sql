WITH places AS MATERIALIZED (
    SELECT
        places_rows."key" AS ordinal,
        json_extract(places_rows.value, '$[0]') AS batch_id,
        json_extract(places_rows.value, '$[1]') AS number
    FROM json_each(:places) AS places_rows
)
SELECT
    places.number,
    task_batches.id,
    task_batches.kind,
    task_batches.on_failed,
    task_batches.size,
    task_batches.completed,
    task_batches.failed,
    task_batches.cancelled,
    task_batches.closed,
    task_batches.stage,
    task_batches.runs_then,
    task_batches.cancel_requested_at,
    task_batches.completed_at
FROM task_batches
JOIN places ON task_batches.id = places.batch_id
WHERE
    task_batches.id IN (SELECT places.batch_id FROM places)
    AND (
        :everything = 1
            OR places.number > 0
            AND task_batches.stage >= places.number
            OR task_batches.on_failed = 'wait'
            AND task_batches.failed > 0
            OR task_batches.kind = 'chain'
            AND task_batches.failed + task_batches.cancelled > 0
            OR task_batches.completed_at IS NOT NULL
            OR task_batches.runs_then = 0
    )
