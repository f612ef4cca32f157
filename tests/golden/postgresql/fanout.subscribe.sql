WITH given AS (
    SELECT
        batch.topic AS topic,
        batch.task_name AS task_name,
        batch.parameter AS parameter,
        batch.queue AS queue,
        batch.priority AS priority,
        batch.max_attempts AS max_attempts,
        batch.lease_seconds AS lease_seconds,
        batch.timeout_seconds AS timeout_seconds,
        batch.on_dead_letter AS on_dead_letter,
        batch.ordinal AS ordinal
    FROM unnest(
        %(given_topic)s::TEXT[],
        %(given_task_name)s::TEXT[],
        %(given_parameter)s::TEXT[],
        %(given_queue)s::TEXT[],
        %(given_priority)s::SMALLINT[],
        %(given_max_attempts)s::INTEGER[],
        %(given_lease_seconds)s::DOUBLE PRECISION[],
        %(given_timeout_seconds)s::DOUBLE PRECISION[],
        %(given_on_dead_letter)s::TEXT[]
    ) WITH ORDINALITY AS batch(
        topic,
        task_name,
        parameter,
        queue,
        priority,
        max_attempts,
        lease_seconds,
        timeout_seconds,
        on_dead_letter,
        ordinal
    )
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
    task_subscriptions.parameter IS DISTINCT FROM excluded.parameter
    OR task_subscriptions.queue IS DISTINCT FROM excluded.queue
    OR task_subscriptions.priority IS DISTINCT FROM excluded.priority
    OR task_subscriptions.max_attempts IS DISTINCT FROM excluded.max_attempts
    OR task_subscriptions.lease_seconds IS DISTINCT FROM excluded.lease_seconds
    OR task_subscriptions.timeout_seconds IS DISTINCT FROM excluded.timeout_seconds
    OR task_subscriptions.on_dead_letter IS DISTINCT FROM excluded.on_dead_letter
