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
    keys(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
        /* due.keys-3: count_3, strftime_13, strftime_14, substr_17, substr_18, param_22, substr_19, substr_20, param_23, strftime_15, printf_5, strftime_16, strftime_17, substr_21, substr_22, param_24, substr_23, substr_24, param_25, strftime_18, printf_6, param_26, param_27, param_28, anon_2, param_29, param_30 */
    ),
    limited AS MATERIALIZED (
        /* due.limited-3: strftime_19, strftime_20, substr_25, substr_26, param_33, substr_27, substr_28, param_34, strftime_21, printf_7, strftime_22, strftime_23, substr_29, substr_30, param_35, substr_31, substr_32, param_36, strftime_24, printf_8, count_4, strftime_25, strftime_26, substr_33, substr_34, param_37, substr_35, substr_36, param_38, strftime_27, printf_9, strftime_28, strftime_29, substr_37, substr_38, param_39, substr_39, substr_40, param_40, strftime_30, printf_10 */
    ),
    due_entries AS MATERIALIZED (/* due.due_entries-1: param_42 */),
    due_keys AS (
        SELECT DISTINCT due_entries.queue AS queue, due_entries.partition_key AS partition_key
        FROM due_entries
        WHERE
            :any_topic = 1
            OR (
                EXISTS (
                    SELECT topics.topic
                    FROM topics
                    WHERE
                        due_entries.topic = topics.topic
                        OR substr(topics.topic, length(topics.topic), 1) = '*'
                        AND substr(due_entries.topic, 1, length(topics.topic) - 1) = substr(
                            topics.topic,
                            1,
                            length(topics.topic) - 1
                        )
                )
            )
    ),
    running AS MATERIALIZED (/* due.running-1 */),
    hopped(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
        /* due.hopped-1: param_43, param_44, anon_3, param_45, param_46 */
    )
SELECT
    (EXISTS (/* due.pairs-2: param_9, param_10 */))
        OR (EXISTS (/* due.oldest-2: param_18, param_19, param_20, param_21 */))
        OR (EXISTS (/* due.keys-2: param_31, param_32 */))
        OR (EXISTS (/* due.limited-2: param_41 */))
        OR (EXISTS (/* due.key_rates-1 */))
        OR (EXISTS (/* due.key_rates-2 */))
        OR (EXISTS (/* due.key_rates-3: param_47, param_48, param_49 */)) AS due,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT :param_50
        OFFSET :param_51
    ) IS NOT NULL AS by_key
