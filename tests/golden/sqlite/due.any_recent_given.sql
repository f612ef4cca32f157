WITH RECURSIVE
    queues AS MATERIALIZED (
        SELECT queues_rows."key" AS ordinal, queues_rows.value AS queue
        FROM json_each(:queues) AS queues_rows
    ),
    pairs(queue, priority) AS (
        /* due.pairs-1: param_1, param_2, count_1, strftime_1, strftime_2, substr_1, substr_2, param_3, substr_3, substr_4, param_4, strftime_3, printf_1, strftime_4, strftime_5, substr_5, substr_6, param_5, substr_7, substr_8, param_6, strftime_6, printf_2, param_7, param_8, anon_1 */
    ),
    topics AS MATERIALIZED (
        SELECT topics_rows."key" AS ordinal, topics_rows.value AS topic
        FROM json_each(:topics) AS topics_rows
    ),
    oldest AS (
        /* due.oldest-3: count_2, strftime_7, strftime_8, substr_9, substr_10, param_11, substr_11, substr_12, param_12, strftime_9, printf_3, strftime_10, strftime_11, substr_13, substr_14, param_13, substr_15, substr_16, param_14, strftime_12, printf_4, param_15, param_16, param_17 */
    ),
    latest AS (
        SELECT execution_events.task_execution_id AS task_execution_id
        FROM execution_events
        ORDER BY execution_events.sequence_num DESC
        LIMIT 64
        OFFSET :param_30
    ),
    recent AS (
        SELECT recent_queues.queue AS queue, due.partition_key AS partition_key
        FROM (
            /* due.open_queues-2: count_3, strftime_13, strftime_14, substr_17, substr_18, param_22, substr_19, substr_20, param_23, strftime_15, printf_5, strftime_16, strftime_17, substr_21, substr_22, param_24, substr_23, substr_24, param_25, strftime_18, printf_6, param_26, param_27 */
        ) AS recent_queues
        JOIN task_outbox AS due ON due.id IN (
            SELECT due_entry.id
            FROM task_outbox AS due_entry
            WHERE
                due_entry.queue = recent_queues.queue
                AND due_entry.partition_key IS NOT NULL
                AND due_entry.available_at <= :now
            ORDER BY due_entry.available_at DESC, due_entry.id DESC
            LIMIT 64
            OFFSET :param_28
        )
        UNION
        SELECT task_executions.queue AS queue, task_executions.partition_key AS partition_key
        FROM (
            /* due.open_queues-2: count_3, strftime_13, strftime_14, substr_17, substr_18, param_22, substr_19, substr_20, param_23, strftime_15, printf_5, strftime_16, strftime_17, substr_21, substr_22, param_24, substr_23, substr_24, param_25, strftime_18, printf_6, param_26, param_29 */
        ) AS recent_queues
        JOIN task_executions ON task_executions.queue = recent_queues.queue
        WHERE
            task_executions.id IN (SELECT latest.task_execution_id FROM latest)
            AND task_executions.partition_key IS NOT NULL
    )
SELECT
    (EXISTS (/* due.pairs-2: param_9, param_10 */))
        OR (EXISTS (/* due.oldest-2: param_18, param_19, param_20, param_21 */))
        OR (EXISTS (/* due.recent-1: param_31, param_32, param_33, param_34 */)) AS due,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT :param_35
        OFFSET :param_36
    ) IS NOT NULL AS by_key
