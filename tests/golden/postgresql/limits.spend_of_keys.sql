WITH given AS (
    SELECT batch.partition_key AS partition_key, batch.full_at AS full_at, batch.ordinal AS ordinal
    FROM unnest(%(given_partition_key)s::TEXT[], %(given_full_at)s::TIMESTAMP WITH TIME ZONE[]) WITH ORDINALITY AS batch(
        partition_key,
        full_at,
        ordinal
    )
)
INSERT INTO key_rates (queue, partition_key, full_at)
SELECT CAST(%(queue)s::VARCHAR AS TEXT) AS anon_1, given.partition_key, given.full_at
FROM given
WHERE true
ON CONFLICT (queue, partition_key) DO UPDATE SET full_at = excluded.full_at
