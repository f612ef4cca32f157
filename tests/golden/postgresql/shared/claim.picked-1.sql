SELECT locked.ctid AS ctid
FROM (
    SELECT pairs.queue AS queue, pairs.priority AS priority, pairs.since AS since
    FROM pairs
    WHERE pairs.priority IS NOT NULL
    ORDER BY pairs.priority DESC
) AS pair
JOIN LATERAL (
    SELECT due.ctid AS ctid
    FROM task_outbox AS due
    WHERE
        due.partition_key IS NULL
        AND due.queue = pair.queue
        AND due.priority = pair.priority
        AND due.available_at <= (SELECT clock.now FROM clock)
        AND due.available_at >= pair.since
        AND (
            %(any_topic)s
                OR (
                    EXISTS (
                        SELECT topics.topic
                        FROM topics
                        WHERE
                            due.topic = topics.topic
                            OR substr(topics.topic, length(topics.topic), 1) = '*'
                            AND substr(due.topic, 1, length(topics.topic) - 1) = substr(
                                topics.topic,
                                1,
                                length(topics.topic) - 1
                            )
                    )
                )
        )
    ORDER BY due.available_at, due.id
    LIMIT %(limit)s::BIGINT
    FOR UPDATE SKIP LOCKED
) AS locked ON true
LIMIT %(limit)s::BIGINT
