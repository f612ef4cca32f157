WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    tasks AS (
        SELECT batch.id AS id, batch.ordinal AS ordinal
        FROM unnest(%(tasks_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
    ),
    page AS MATERIALIZED (
        SELECT
            task_outbox.task_execution_id AS id,
            task_outbox.id AS entry_id,
            task_outbox.queue AS queue,
            task_outbox.partition_key AS partition_key,
            task_outbox.available_at AS available_at,
            task_outbox.priority AS priority
        FROM task_outbox
        WHERE task_outbox.task_execution_id = any(array((SELECT tasks.id FROM tasks)))
    ),
    set_up AS MATERIALIZED (
        SELECT
            queue_settings.queue AS queue,
            queue_settings.paused_at AS paused_at,
            queue_settings.concurrency_limit AS concurrency_limit,
            queue_settings.rate_limit AS rate_limit,
            queue_settings.rate_seconds AS rate_seconds,
            queue_settings.rate_full_at AS rate_full_at,
            queue_settings.key_concurrency AS key_concurrency,
            queue_settings.key_rate_limit AS key_rate_limit,
            CASE
                WHEN (queue_settings.concurrency_limit IS NOT NULL) THEN (
                    SELECT count(*) AS count_1
                    FROM task_leases
                    WHERE task_leases.queue = queue_settings.queue
                )
            END AS running
        FROM queue_settings
        WHERE queue_settings.queue = any(array((SELECT page.queue FROM page)))
    )
SELECT
    page.id,
    page.entry_id,
    page.available_at,
    page.priority,
    (SELECT clock.now FROM clock) AS now,
    (
        SELECT first.task_execution_id
        FROM task_outbox AS first
        WHERE first.queue = page.queue AND first.partition_key = page.partition_key
        ORDER BY first.priority DESC, first.position
        LIMIT %(param_1)s::INTEGER
    ) AS head,
    (
        SELECT first.available_at
        FROM task_outbox AS first
        WHERE first.queue = page.queue AND first.partition_key = page.partition_key
        ORDER BY first.priority DESC, first.position
        LIMIT %(param_1)s::INTEGER
    ) AS head_due,
    (
        SELECT claim.task_execution_id
        FROM partition_claims AS claim
        WHERE claim.queue = page.queue AND claim.partition_key = page.partition_key
    ) AS owner,
    (
        SELECT claim.held
        FROM partition_claims AS claim
        WHERE claim.queue = page.queue AND claim.partition_key = page.partition_key
    ) AS held,
    set_up.paused_at,
    set_up.concurrency_limit,
    set_up.rate_limit,
    set_up.rate_seconds,
    set_up.rate_full_at,
    set_up.key_concurrency,
    set_up.key_rate_limit,
    set_up.running
FROM page
LEFT OUTER JOIN set_up ON set_up.queue = page.queue
