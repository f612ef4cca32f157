WITH
    parents AS (
        SELECT unnest(
            ARRAY[to_regclass(%(to_regclass_1)s::VARCHAR),
            to_regclass(%(to_regclass_2)s::VARCHAR),
            to_regclass(%(to_regclass_3)s::VARCHAR),
            to_regclass(%(to_regclass_4)s::VARCHAR),
            to_regclass(%(to_regclass_5)s::VARCHAR),
            to_regclass(%(to_regclass_6)s::VARCHAR),
            to_regclass(%(to_regclass_7)s::VARCHAR),
            to_regclass(%(to_regclass_8)s::VARCHAR),
            to_regclass(%(to_regclass_9)s::VARCHAR),
            to_regclass(%(to_regclass_10)s::VARCHAR),
            to_regclass(%(to_regclass_11)s::VARCHAR),
            to_regclass(%(to_regclass_12)s::VARCHAR),
            to_regclass(%(to_regclass_13)s::VARCHAR),
            to_regclass(%(to_regclass_14)s::VARCHAR),
            to_regclass(%(to_regclass_15)s::VARCHAR),
            to_regclass(%(to_regclass_16)s::VARCHAR),
            to_regclass(%(to_regclass_17)s::VARCHAR),
            to_regclass(%(to_regclass_18)s::VARCHAR),
            to_regclass(%(to_regclass_19)s::VARCHAR),
            to_regclass(%(to_regclass_20)s::VARCHAR),
            to_regclass(%(to_regclass_21)s::VARCHAR),
            to_regclass(%(to_regclass_22)s::VARCHAR),
            to_regclass(%(to_regclass_23)s::VARCHAR),
            to_regclass(%(to_regclass_24)s::VARCHAR),
            to_regclass(%(to_regclass_25)s::VARCHAR),
            to_regclass(%(to_regclass_26)s::VARCHAR)]
        ) AS oid
    ),
    ours AS (
        SELECT parents.oid AS oid
        FROM parents
        UNION ALL
        SELECT pg_catalog.pg_inherits.inhrelid AS inhrelid
        FROM pg_catalog.pg_inherits
        JOIN parents ON parents.oid = pg_catalog.pg_inherits.inhparent
    ),
    each AS (
        SELECT
            pg_catalog.pg_locks.pid AS pid,
            pg_catalog.pg_locks.virtualtransaction AS virtualtransaction,
            array_agg(distinct(CAST(pg_catalog.pg_class.relname AS TEXT))) AS tables,
            array_agg(distinct(pg_catalog.pg_locks.mode)) FILTER (WHERE pg_catalog.pg_locks.granted) AS holds,
            array_agg(distinct(pg_catalog.pg_locks.mode)) FILTER (
                WHERE pg_catalog.pg_locks.granted IS NOT true
            ) AS wants
        FROM pg_catalog.pg_locks
        JOIN ours ON ours.oid = pg_catalog.pg_locks.relation
        JOIN pg_catalog.pg_class ON pg_catalog.pg_class.oid = pg_catalog.pg_locks.relation
        WHERE
            pg_catalog.pg_locks.locktype = 'relation'
            AND pg_catalog.pg_locks.database = (
                SELECT pg_catalog.pg_database.oid
                FROM pg_catalog.pg_database
                WHERE pg_catalog.pg_database.datname = current_database()
            )
            AND pg_catalog.pg_locks.pid IS DISTINCT FROM pg_backend_pid()
        GROUP BY pg_catalog.pg_locks.pid, pg_catalog.pg_locks.virtualtransaction
    )
SELECT
    each.pid,
    each.tables,
    each.holds,
    each.wants,
    pg_catalog.pg_stat_activity.application_name AS application,
    pg_catalog.pg_stat_activity.state,
    pg_catalog.pg_stat_activity.query,
    pg_catalog.pg_prepared_xacts.gid AS prepared,
    CAST(
        EXTRACT(
            epoch
            FROM clock_timestamp() - coalesce(
                pg_catalog.pg_stat_activity.xact_start,
                pg_catalog.pg_prepared_xacts.prepared
            )
        ) AS DOUBLE PRECISION
    ) AS age,
    CAST(EXTRACT(epoch FROM clock_timestamp() - pg_catalog.pg_stat_activity.state_change) AS DOUBLE PRECISION) AS in_state,
    CAST(
        CASE
            WHEN (
                EXISTS (
                    SELECT 1
                    FROM pg_catalog.pg_locks AS other
                    WHERE other.pid = each.pid AND other.granted IS NOT true
                )
            ) THEN pg_blocking_pids(each.pid)
        END AS INTEGER[]
    ) AS waits_for
FROM each
LEFT OUTER JOIN pg_catalog.pg_stat_activity ON pg_catalog.pg_stat_activity.pid = each.pid
LEFT OUTER JOIN pg_catalog.pg_prepared_xacts ON each.pid IS NULL
    AND pg_catalog.pg_prepared_xacts.transaction IN (
        SELECT own.transactionid
        FROM pg_catalog.pg_locks AS own
        WHERE own.pid IS NULL AND own.virtualtransaction = each.virtualtransaction
    )
ORDER BY EXISTS (
    SELECT 1
    FROM pg_catalog.pg_locks AS other
    WHERE other.pid = each.pid AND other.granted IS NOT true
), coalesce(pg_catalog.pg_stat_activity.xact_start, pg_catalog.pg_prepared_xacts.prepared) ASC NULLS LAST
LIMIT 100
