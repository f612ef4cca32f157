SELECT near.queue
FROM (
    SELECT
        due_keys.queue AS queue,
        due_keys.partition_key AS partition_key,
        substr(due_keys.partition_key, 1, 12) = 'concurrency:' AS is_concurrency,
        coalesce(running.tasks, 0) AS running,
        (
            SELECT key_rates.full_at
            FROM key_rates
            WHERE key_rates.queue = due_keys.queue AND key_rates.partition_key = due_keys.partition_key
        ) AS full_at,
        CASE WHEN (substr(due_keys.partition_key, 1, 12) = 'concurrency:') THEN coalesce(running.tasks, 0) < limited.key_concurrency ELSE (
            SELECT claims.queue
            FROM partition_claims AS claims
            WHERE claims.queue = due_keys.queue AND claims.partition_key = due_keys.partition_key
        ) IS NULL END
            AND NOT coalesce(
                (
                    SELECT key_rates.full_at
                    FROM key_rates
                    WHERE
                        key_rates.queue = due_keys.queue
                        AND key_rates.partition_key = due_keys.partition_key
                ) > limited.blocked_after
                    AND (
                        SELECT key_rates.full_at
                        FROM key_rates
                        WHERE
                            key_rates.queue = due_keys.queue
                            AND key_rates.partition_key = due_keys.partition_key
                    ) <= limited.blocked_until,
                false
            ) AS free
    FROM due_keys
    JOIN limited ON limited.queue = due_keys.queue
    LEFT OUTER JOIN running ON running.queue = due_keys.queue
        AND running.partition_key = due_keys.partition_key
) AS near
WHERE near.free
