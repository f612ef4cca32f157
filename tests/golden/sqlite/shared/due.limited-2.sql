SELECT limited.queue
FROM limited
WHERE (
    SELECT plain_due.id
    FROM task_outbox AS plain_due
    WHERE
        plain_due.queue = limited.queue
        AND plain_due.partition_key IS NULL
        AND plain_due.available_at <= :now
        AND (
            :any_topic = 1
                OR (
                    EXISTS (
                        SELECT topics.topic
                        FROM topics
                        WHERE
                            plain_due.topic = topics.topic
                            OR substr(topics.topic, length(topics.topic), 1) = '*'
                            AND substr(plain_due.topic, 1, length(topics.topic) - 1) = substr(
                                topics.topic,
                                1,
                                length(topics.topic) - 1
                            )
                    )
                )
        )
    LIMIT 1
    OFFSET :param_1
) IS NOT NULL
