SELECT merged.queue AS queue, merged.priority AS priority, merged.since AS since, count(*) AS share
FROM (
    SELECT pairs.queue AS queue, pairs.priority AS priority, pairs.since AS since
    FROM pairs
    JOIN LATERAL (
        SELECT entry.available_at AS available_at, entry.id AS id
        FROM task_outbox AS entry
        WHERE
            entry.partition_key IS NULL
            AND entry.queue = pairs.queue
            AND entry.priority = pairs.priority
            AND entry.available_at <= (SELECT clock.now FROM clock)
            AND entry.available_at >= pairs.since
            AND (
                %(any_topic)s
                    OR (
                        EXISTS (
                            SELECT topics.topic
                            FROM topics
                            WHERE
                                entry.topic = topics.topic
                                OR substr(topics.topic, length(topics.topic), 1) = '*'
                                AND substr(entry.topic, 1, length(topics.topic) - 1) = substr(
                                    topics.topic,
                                    1,
                                    length(topics.topic) - 1
                                )
                        )
                    )
            )
        ORDER BY entry.available_at, entry.id
        LIMIT %(limit)s::BIGINT
    ) AS ahead ON true
    ORDER BY pairs.priority DESC, ahead.available_at, ahead.id
    LIMIT %(limit)s::BIGINT
) AS merged
GROUP BY merged.queue, merged.priority, merged.since
