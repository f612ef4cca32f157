SELECT idempotency_keys.scope AS task_name, idempotency_keys.task_execution_id AS id
FROM idempotency_keys
WHERE
    idempotency_keys.scope = any(
        array(
            (
                SELECT subscriber.task_name
                FROM (
                    SELECT task_subscriptions.task_name AS task_name
                    FROM task_subscriptions
                    WHERE
                        (
                            %(topic)s::VARCHAR = task_subscriptions.topic
                                OR substr(task_subscriptions.topic, length(task_subscriptions.topic), 1) = '*'
                                AND substr(%(topic)s::VARCHAR, 1, length(task_subscriptions.topic) - 1) = substr(
                                    task_subscriptions.topic,
                                    1,
                                    length(task_subscriptions.topic) - 1
                                )
                        )
                        AND task_subscriptions.parameter IS NOT NULL
                ) AS subscriber
            )
        )
    )
    AND idempotency_keys.key = %(idempotency_key)s::VARCHAR
