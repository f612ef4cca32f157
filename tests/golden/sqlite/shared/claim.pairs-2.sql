SELECT entry_due.id
FROM pairs
JOIN task_outbox AS entry_due ON entry_due.id IN (
    SELECT ahead.id
    FROM task_outbox AS ahead
    WHERE
        ahead.partition_key IS NULL
        AND ahead.queue = pairs.queue
        AND ahead.priority = pairs.priority
        AND ahead.available_at <= :now
        AND (
            :any_topic = 1
                OR (
                    EXISTS (
                        SELECT topics.topic
                        FROM topics
                        WHERE
                            ahead.topic = topics.topic
                            OR substr(topics.topic, length(topics.topic), 1) = '*'
                            AND substr(ahead.topic, 1, length(topics.topic) - 1) = substr(
                                topics.topic,
                                1,
                                length(topics.topic) - 1
                            )
                    )
                )
        )
    ORDER BY ahead.available_at, ahead.id
    LIMIT :limit
    OFFSET :param_1
)
ORDER BY entry_due.priority DESC, entry_due.available_at, entry_due.id
LIMIT :limit
OFFSET :param_2
