SELECT due_keys.n
FROM (/* due.due_keys-1: param_1, param_2 */) AS due_keys
WHERE
    due_keys.available_at <= :now
    AND (
        :any_topic = 1
            OR (
                EXISTS (
                    SELECT topics.topic
                    FROM topics
                    WHERE
                        due_keys.topic = topics.topic
                        OR substr(topics.topic, length(topics.topic), 1) = '*'
                        AND substr(due_keys.topic, 1, length(topics.topic) - 1) = substr(
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
        WHERE claims.queue = due_keys.queue AND claims.partition_key = due_keys.partition_key
    ) IS NULL
LIMIT :param_3
OFFSET :param_4
