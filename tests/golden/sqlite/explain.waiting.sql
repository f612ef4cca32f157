WITH
    tasks AS MATERIALIZED (
        SELECT tasks_rows."key" AS ordinal, tasks_rows.value AS id
        FROM json_each(:tasks) AS tasks_rows
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
        WHERE task_outbox.task_execution_id IN (SELECT tasks.id FROM tasks)
    ),
    set_up AS MATERIALIZED (/* explain.set_up-1: count_1 */)
SELECT
    page.id,
    page.entry_id,
    page.available_at,
    page.priority,
    :now AS now,
    (
        SELECT first.task_execution_id
        FROM task_outbox AS first
        WHERE first.queue = page.queue AND first.partition_key = page.partition_key
        ORDER BY first.priority DESC, first.position
        LIMIT :param_1
        OFFSET :param_2
    ) AS head,
    (
        SELECT first.available_at
        FROM task_outbox AS first
        WHERE first.queue = page.queue AND first.partition_key = page.partition_key
        ORDER BY first.priority DESC, first.position
        LIMIT :param_1
        OFFSET :param_3
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
    set_up.pause_reason,
    set_up.concurrency_limit,
    set_up.rate_limit,
    set_up.rate_seconds,
    set_up.rate_full_at,
    set_up.key_concurrency,
    set_up.key_rate_limit,
    set_up.running
FROM page
LEFT OUTER JOIN set_up ON set_up.queue = page.queue
