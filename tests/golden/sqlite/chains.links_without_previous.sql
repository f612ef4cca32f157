WITH links AS MATERIALIZED (
    SELECT
        links_rows."key" AS ordinal,
        json_extract(links_rows.value, '$[0]') AS id,
        json_extract(links_rows.value, '$[1]') AS batch_id,
        json_extract(links_rows.value, '$[2]') AS "before"
    FROM json_each(:links) AS links_rows
)
SELECT links.id, links."before"
FROM task_batches
JOIN links ON task_batches.id = links.batch_id
JOIN task_executions ON task_executions.id = links.id
WHERE
    task_batches.id IN (SELECT links.batch_id FROM links)
    AND task_batches.kind = 'chain'
    AND task_executions.id IN (SELECT links.id FROM links)
    AND task_executions.status = 'Failed'
    AND (
        SELECT "before".id
        FROM task_executions AS "before"
        WHERE "before".id = links."before"
    ) IS NULL
