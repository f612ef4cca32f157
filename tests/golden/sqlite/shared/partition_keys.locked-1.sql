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
        WHERE hop.free = 1
    ) AS turns
    ORDER BY turns.turn, turns.place
    LIMIT :budget
    OFFSET :param_1
) AS unclaimed
WHERE 1 = 1
LIMIT :limit
OFFSET :param_2
