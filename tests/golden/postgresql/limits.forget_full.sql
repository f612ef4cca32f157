WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
DELETE FROM key_rates
WHERE (key_rates.queue, key_rates.partition_key) IN (
    SELECT key_rates.queue, key_rates.partition_key
    FROM key_rates
    WHERE
        key_rates.queue = %(queue)s::VARCHAR
        AND key_rates.full_at <= (SELECT clock.now FROM clock)
    LIMIT 100
)
