SELECT
    CAST(
        substr(CAST(%(pipeline_execution_id)s::UUID AS TEXT), 1, 32) || lpad(
            to_hex(row_number() OVER (ORDER BY found.task_name)),
            4,
            '0'
        ) AS UUID
    ) AS id,
    %(pipeline_execution_id)s::UUID AS pipeline_execution_id,
    found.task_name AS task_name,
    found.queue AS queue,
    found.priority AS priority,
    found.max_attempts AS max_attempts,
    found.lease_seconds AS lease_seconds,
    found.timeout_seconds AS timeout_seconds,
    found.on_dead_letter AS on_dead_letter,
    found.parameter AS parameter
FROM (
    SELECT
        task_subscriptions.topic AS topic,
        task_subscriptions.task_name AS task_name,
        task_subscriptions.parameter AS parameter,
        task_subscriptions.queue AS queue,
        task_subscriptions.priority AS priority,
        task_subscriptions.max_attempts AS max_attempts,
        task_subscriptions.lease_seconds AS lease_seconds,
        task_subscriptions.timeout_seconds AS timeout_seconds,
        task_subscriptions.on_dead_letter AS on_dead_letter,
        row_number() OVER (PARTITION BY task_subscriptions.task_name ORDER BY task_subscriptions.topic) AS nth
    FROM task_subscriptions
    WHERE
        %(topic)s::VARCHAR = task_subscriptions.topic
        OR substr(task_subscriptions.topic, length(task_subscriptions.topic), 1) = '*'
        AND substr(%(topic)s::VARCHAR, 1, length(task_subscriptions.topic) - 1) = substr(
            task_subscriptions.topic,
            1,
            length(task_subscriptions.topic) - 1
        )
) AS found
WHERE found.nth = 1
ORDER BY found.task_name
