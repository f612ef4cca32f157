SELECT unclaimed.queue AS queue, unclaimed.partition_key AS partition_key, unclaimed.id AS id
FROM (
    SELECT turns.queue AS queue, turns.partition_key AS partition_key, turns.id AS id
    FROM (
        SELECT
            hop.queue AS queue,
            hop.partition_key AS partition_key,
            hop.id AS id,
            hop.place AS place,
            row_number() OVER (PARTITION BY hop.place ORDER BY hop.n) AS turn
        FROM hop
        WHERE hop.free
    ) AS turns
    ORDER BY turns.turn, turns.place
    LIMIT %(budget)s::INTEGER
) AS unclaimed
WHERE pg_try_advisory_xact_lock(
    hashtextextended(concat_ws(chr(31), 'outboxq', unclaimed.queue, unclaimed.partition_key), 0)
)
LIMIT %(limit)s::BIGINT
