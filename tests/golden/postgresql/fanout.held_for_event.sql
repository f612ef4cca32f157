SELECT idempotency_keys.scope AS task_name, idempotency_keys.task_execution_id AS id
FROM idempotency_keys
WHERE idempotency_keys.scope = any(array((SELECT subscriber.task_name
FROM (SELECT task_subscriptions.task_name AS task_name
FROM task_subscriptions
WHERE %(event_type)s::VARCHAR = task_subscriptions.event_type OR substr(task_subscriptions.event_type,
    length(task_subscriptions.event_type), 1) = '*' AND substr(%(event_type)s::VARCHAR, 1,
    length(task_subscriptions.event_type) - 1) = substr(task_subscriptions.event_type, 1,
    length(task_subscriptions.event_type) - 1)) AS subscriber))) AND idempotency_keys.key = %(idempotency_key)s::VARCHAR
