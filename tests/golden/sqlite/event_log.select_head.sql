SELECT
    (
        SELECT coalesce(max(execution_events.sequence_num), 0) AS coalesce_1
        FROM execution_events
    ) AS head,
    0 AS oldest_open,
    0 AS next_transaction
