DELETE FROM key_rates
WHERE (key_rates.queue, key_rates.partition_key) IN (
    SELECT key_rates.queue, key_rates.partition_key
    FROM key_rates
    WHERE key_rates.queue = :queue AND key_rates.full_at <= :now
    LIMIT 100
    OFFSET :param_1
)
