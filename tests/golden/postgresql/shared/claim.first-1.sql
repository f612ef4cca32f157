SELECT locked.ctid AS ctid
FROM (
    SELECT share.queue AS queue, share.priority AS priority, share.since AS since, share.share AS share
    FROM share
    ORDER BY share.priority DESC
) AS shares
JOIN LATERAL (
    SELECT due.ctid AS ctid
    FROM task_outbox AS due
    WHERE
        due.partition_key IS NULL
        AND due.queue = shares.queue
        AND due.priority = shares.priority
        AND due.available_at <= (SELECT clock.now FROM clock)
        AND due.available_at >= shares.since
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
    LIMIT shares.share
    FOR UPDATE SKIP LOCKED
) AS locked ON true
