SELECT first.id, first.name, first.kind, first.failed, first.updated_at
FROM (/* overview.first-1: param_1 */) AS first
WHERE
    first.closed = 1
    AND first.cancel_requested_at IS NULL
    AND first.on_failed = 'wait'
    AND first.failed > 0
    AND CAST(first.completed AS BIGINT) + first.failed + first.cancelled >= first.size
