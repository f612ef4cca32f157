SELECT pairs.queue
FROM pairs
WHERE (
    SELECT entry_due.id
    FROM task_outbox AS entry_due
    WHERE
        entry_due.partition_key IS NULL
        AND entry_due.queue = pairs.queue
        AND entry_due.priority = pairs.priority
        AND entry_due.available_at <= :now
        AND (
            :any_topic = 1
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
    LIMIT :param_1
    OFFSET :param_2
) IS NOT NULL
