WITH tasks AS (
    SELECT batch.task_name AS task_name, batch.ordinal AS ordinal
    FROM unnest(%(tasks_task_name)s::TEXT[]) WITH ORDINALITY AS batch(task_name, ordinal)
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
WHERE task_subscriptions.task_name = any(array((SELECT tasks.task_name FROM tasks)))
ORDER BY task_subscriptions.topic, task_subscriptions.task_name
FOR UPDATE
