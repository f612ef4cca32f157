WITH tasks AS MATERIALIZED (
    SELECT tasks_rows."key" AS ordinal, tasks_rows.value AS task_name
    FROM json_each(:tasks) AS tasks_rows
)
SELECT
    task_subscriptions.topic,
    task_subscriptions.task_name,
    task_subscriptions.parameter,
    task_subscriptions.queue,
    task_subscriptions.priority,
    task_subscriptions.max_attempts,
    task_subscriptions.lease_seconds,
    task_subscriptions.timeout_seconds,
    task_subscriptions.on_dead_letter
FROM task_subscriptions
WHERE task_subscriptions.task_name IN (SELECT tasks.task_name FROM tasks)
ORDER BY task_subscriptions.topic, task_subscriptions.task_name
