SELECT
    (
        SELECT coalesce(max(execution_events.sequence_num), 0) AS coalesce_1
        FROM execution_events
    ) AS head,
    CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) AS oldest_open,
    CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) + age(
        CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid)
    ) AS next_transaction
