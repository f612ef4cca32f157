WITH
    chosen AS (
        SELECT batch.id AS id, batch.ordinal AS ordinal
        FROM unnest(%(chosen_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
    ),
    page AS MATERIALIZED (
        SELECT
            dead_letters.task_execution_id AS task_execution_id,
            dead_letters.queue AS queue,
            dead_letters.task_name AS task_name,
            dead_letters.topic AS topic,
            dead_letters.partition_key AS partition_key,
            dead_letters.exception AS exception,
            dead_letters.failed_at AS failed_at,
            dead_letters.lost_key AS lost_key
        FROM dead_letters
        WHERE dead_letters.task_execution_id = any(array((SELECT chosen.id FROM chosen)))
    )
SELECT
    page.task_execution_id AS id,
    page.task_name,
    page.queue,
    page.topic,
    page.partition_key,
    page.exception,
    page.failed_at,
    task_executions.last_error,
    task_executions.attempt,
    task_executions.recovery_attempts,
    EXISTS (
        SELECT partition_claims.task_execution_id
        FROM partition_claims
        WHERE partition_claims.task_execution_id = page.task_execution_id AND partition_claims.held
    ) AS holds_key
FROM page
JOIN task_executions ON task_executions.id = page.task_execution_id
WHERE task_executions.id = any(array((SELECT page.task_execution_id FROM page)))
ORDER BY page.failed_at DESC, page.task_execution_id DESC
