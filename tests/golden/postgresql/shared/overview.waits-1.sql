SELECT
    first.id AS id,
    first.name AS name,
    first.kind AS kind,
    first.failed AS failed,
    first.updated_at AS updated_at
FROM (/* overview.first-1 */) AS first
WHERE
    first.closed
    AND first.cancel_requested_at IS NULL
    AND first.on_failed = 'wait'
    AND first.failed > 0
    AND CAST(first.completed AS BIGINT) + first.failed + first.cancelled >= first.size
