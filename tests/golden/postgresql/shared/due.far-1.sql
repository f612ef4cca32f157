SELECT
    hopped.queue AS queue,
    hopped.partition_key AS partition_key,
    substr(hopped.partition_key, 1, 12) = 'concurrency:' AS is_concurrency,
    coalesce(running.tasks, 0) AS running,
    (
        SELECT key_rates.full_at
        FROM key_rates
        WHERE key_rates.queue = hopped.queue AND key_rates.partition_key = hopped.partition_key
    ) AS full_at,
    CASE WHEN (substr(hopped.partition_key, 1, 12) = 'concurrency:') THEN coalesce(running.tasks, 0) < limited.key_concurrency ELSE hopped.available_at <= (
        SELECT clock.now FROM clock
    )
        AND (
            %(any_topic)s
                OR (
                    EXISTS (
                        SELECT topics.topic
                        FROM topics
                        WHERE
                            hopped.topic = topics.topic
                            OR substr(topics.topic, length(topics.topic), 1) = '*'
                            AND substr(hopped.topic, 1, length(topics.topic) - 1) = substr(
                                topics.topic,
                                1,
                                length(topics.topic) - 1
                            )
                    )
                )
        )
        AND (
            SELECT claims.queue
            FROM partition_claims AS claims
            WHERE claims.queue = hopped.queue AND claims.partition_key = hopped.partition_key
        ) IS NULL
        END
        AND NOT coalesce(
            (
                SELECT key_rates.full_at
                FROM key_rates
                WHERE key_rates.queue = hopped.queue AND key_rates.partition_key = hopped.partition_key
            ) > limited.blocked_after
                AND (
                    SELECT key_rates.full_at
                    FROM key_rates
                    WHERE key_rates.queue = hopped.queue AND key_rates.partition_key = hopped.partition_key
                ) <= limited.blocked_until,
            false
        ) AS free,
    hopped.n AS n
FROM hopped
JOIN limited ON limited.queue = hopped.queue
LEFT OUTER JOIN running ON running.queue = hopped.queue AND running.partition_key = hopped.partition_key
