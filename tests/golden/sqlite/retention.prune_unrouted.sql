-- doomed
SELECT execution_events.sequence_num
FROM execution_events
WHERE
    execution_events.task_execution_id IS NULL
    AND execution_events.lease_token IS NULL
    AND execution_events.created_at < :before
LIMIT :limit
OFFSET :param_1;

-- events
WITH doomed AS MATERIALIZED (
    SELECT doomed_rows."key" AS ordinal, doomed_rows.value AS sequence_num
    FROM json_each(:doomed) AS doomed_rows
)
DELETE FROM execution_events
WHERE
    execution_events.task_execution_id IS NULL
    AND execution_events.sequence_num IN (SELECT doomed.sequence_num FROM doomed)
RETURNING sequence_num AS id
