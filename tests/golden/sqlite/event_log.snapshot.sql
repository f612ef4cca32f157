SELECT
    (
        SELECT coalesce(max(execution_events.sequence_num), 0) AS coalesce_1
        FROM execution_events
    ) AS head,
    '0:0:' AS snapshot,
    0 AS next_transaction
