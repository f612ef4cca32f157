SELECT keys.n
FROM keys
WHERE
    keys.available_at <= (SELECT clock.now FROM clock)
    AND (
        %(any_topic)s
            OR (
                EXISTS (
                    SELECT topics.topic
                    FROM topics
                    WHERE
                        keys.topic = topics.topic
                        OR substr(topics.topic, length(topics.topic), 1) = '*'
                        AND substr(keys.topic, 1, length(topics.topic) - 1) = substr(
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
        WHERE claims.queue = keys.queue AND claims.partition_key = keys.partition_key
    ) IS NULL
    OR keys.n = 1000
LIMIT %(param_1)s::INTEGER
