-- written
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS topic,
        json_extract(given_rows.value, '$[1]') AS task_name,
        json_extract(given_rows.value, '$[2]') AS parameter,
        json_extract(given_rows.value, '$[3]') AS queue,
        json_extract(given_rows.value, '$[4]') AS priority,
        json_extract(given_rows.value, '$[5]') AS max_attempts,
        json_extract(given_rows.value, '$[6]') AS lease_seconds,
        json_extract(given_rows.value, '$[7]') AS timeout_seconds,
        json_extract(given_rows.value, '$[8]') AS on_dead_letter
    FROM json_each(:given) AS given_rows
)
INSERT INTO task_subscriptions (
    topic,
    task_name,
    parameter,
    queue,
    priority,
    max_attempts,
    lease_seconds,
    timeout_seconds,
    on_dead_letter
)
SELECT
    given.topic,
    given.task_name,
    given.parameter,
    given.queue,
    given.priority,
    given.max_attempts,
    given.lease_seconds,
    given.timeout_seconds,
    given.on_dead_letter
FROM given
WHERE given.task_name IS NOT NULL
ORDER BY given.topic, given.task_name
ON CONFLICT (topic, task_name) DO UPDATE SET parameter = excluded.parameter, queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts, lease_seconds = excluded.lease_seconds, timeout_seconds = excluded.timeout_seconds, on_dead_letter = excluded.on_dead_letter
WHERE
    task_subscriptions.parameter IS NOT excluded.parameter
    OR task_subscriptions.queue IS NOT excluded.queue
    OR task_subscriptions.priority IS NOT excluded.priority
    OR task_subscriptions.max_attempts IS NOT excluded.max_attempts
    OR task_subscriptions.lease_seconds IS NOT excluded.lease_seconds
    OR task_subscriptions.timeout_seconds IS NOT excluded.timeout_seconds
    OR task_subscriptions.on_dead_letter IS NOT excluded.on_dead_letter
