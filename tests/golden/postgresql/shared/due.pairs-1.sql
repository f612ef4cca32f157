SELECT pairs.queue
FROM pairs
WHERE CASE
    WHEN (
        (
            SELECT entry_due.id
            FROM task_outbox AS entry_due
            WHERE
                entry_due.partition_key IS NULL
                AND entry_due.queue = pairs.queue
                AND entry_due.priority = pairs.priority
                AND entry_due.available_at <= (SELECT clock.now FROM clock)
                AND entry_due.available_at >= pairs.since
                AND (
                    %(any_topic)s
                        OR (
                            EXISTS (
                                SELECT topics.topic
                                FROM topics
                                WHERE
                                    entry_due.topic = topics.topic
                                    OR substr(topics.topic, length(topics.topic), 1) = '*'
                                    AND substr(entry_due.topic, 1, length(topics.topic) - 1) = substr(
                                        topics.topic,
                                        1,
                                        length(topics.topic) - 1
                                    )
                            )
                        )
                )
            ORDER BY entry_due.available_at, entry_due.id
            LIMIT %(param_1)s::INTEGER
        ) IS NOT NULL
    ) THEN (
        SELECT mine.queue
        FROM queue_settings AS mine
        WHERE
            mine.queue = pairs.queue
            AND (
                mine.paused_at IS NOT NULL
                    OR mine.key_concurrency IS NOT NULL
                    OR mine.key_rate_limit IS NOT NULL
                    OR mine.concurrency_limit IS NOT NULL
                    AND mine.concurrency_limit <= (
                        SELECT count(*) AS count_1
                        FROM task_leases AS lease
                        WHERE lease.queue = mine.queue
                    )
                    OR CASE
                        WHEN (
                            mine.rate_full_at <= (SELECT clock.now FROM clock) + mine.rate_seconds * 2 * interval '1 second'
                        ) THEN mine.rate_full_at + (
                            -(mine.rate_seconds - mine.rate_seconds / CAST(mine.rate_limit AS NUMERIC))
                        ) * interval '1 second'
                    END > (SELECT clock.now FROM clock)
            )
    ) IS NULL
    ELSE false
END
