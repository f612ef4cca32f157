SELECT DISTINCT task_subscriptions.task_name
FROM task_subscriptions
WHERE
    (
        :topic = task_subscriptions.topic
            OR substr(task_subscriptions.topic, length(task_subscriptions.topic), 1) = '*'
            AND substr(:topic, 1, length(task_subscriptions.topic) - 1) = substr(
                task_subscriptions.topic,
                1,
                length(task_subscriptions.topic) - 1
            )
    )
    AND task_subscriptions.parameter IS NULL
