WITH links AS (
    SELECT batch.id AS id, batch.batch_id AS batch_id, batch.before AS before, batch.ordinal AS ordinal
    FROM unnest(%(links_id)s::UUID[], %(links_batch_id)s::UUID[], %(links_before)s::UUID[]) WITH ORDINALITY AS batch(
        id,
        batch_id,
        before,
        ordinal
    )
)
SELECT links.id, links.before
FROM task_batches
JOIN links ON task_batches.id = links.batch_id
JOIN task_executions ON task_executions.id = links.id
WHERE
    task_batches.id = any(array((SELECT links.batch_id FROM links)))
    AND task_batches.kind = 'chain'
    AND task_executions.id = any(array((SELECT links.id FROM links)))
    AND task_executions.status = 'Failed'
    AND (
        SELECT before.id
        FROM task_executions AS before
        WHERE before.id = links.before
    ) IS NULL
