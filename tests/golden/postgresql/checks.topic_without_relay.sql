SELECT DISTINCT task_subscriptions.task_name AS id
FROM task_subscriptions
WHERE
    task_subscriptions.parameter IS NULL
    AND NOT (
        EXISTS (
            SELECT relays.name
            FROM relays
            WHERE relays.name = substr(task_subscriptions.task_name, 7)
        )
    )
