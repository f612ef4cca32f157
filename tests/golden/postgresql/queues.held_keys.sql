SELECT
    held.queue,
    held.partition_key,
    held.task_execution_id AS dead_letter,
    held.failed_at,
    (
        SELECT count(*) AS count_1
        FROM (
            SELECT 1 AS one
            FROM task_outbox AS entry
            WHERE entry.queue = held.queue AND entry.partition_key = held.partition_key
            LIMIT %(most)s::BIGINT
        ) AS waiting
    ) AS waiting
FROM (/* overview.held-1 */) AS held
ORDER BY held.failed_at, held.partition_key
