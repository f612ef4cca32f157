SELECT substr(task_subscriptions.task_name, 7) AS relay, task_subscriptions.topic
FROM task_subscriptions
WHERE task_subscriptions.parameter IS NULL
ORDER BY task_subscriptions.task_name, task_subscriptions.topic
