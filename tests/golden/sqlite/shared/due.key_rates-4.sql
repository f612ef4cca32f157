SELECT spent.full_at
FROM (
    SELECT key_rates.queue AS queue, key_rates.partition_key AS partition_key, key_rates.full_at AS full_at
    FROM key_rates
    WHERE
        key_rates.queue = limited.queue
        AND key_rates.full_at > limited.blocked_after
        AND key_rates.full_at <= limited.blocked_until
    ORDER BY key_rates.full_at
    LIMIT 1000
    OFFSET :param_1
) AS spent
WHERE (
    SELECT entry_of_key.id
    FROM task_outbox AS entry_of_key
    WHERE entry_of_key.queue = spent.queue AND entry_of_key.partition_key = spent.partition_key
    LIMIT 1
    OFFSET :param_2
) IS NOT NULL
ORDER BY spent.full_at
LIMIT 1
OFFSET :param_3
