WITH RECURSIVE
    queues AS MATERIALIZED (
        SELECT queues_rows."key" AS ordinal, queues_rows.value AS queue
        FROM json_each(:queues) AS queues_rows
    ),
    pairs(queue, priority) AS (
        SELECT
            queues.queue AS queue,
            (
                SELECT entry.priority
                FROM task_outbox AS entry
                WHERE entry.queue = queues.queue AND entry.partition_key IS NULL
                ORDER BY entry.priority DESC
                LIMIT :param_1
                OFFSET :param_2
            ) AS priority
        FROM queues
        WHERE
            queues.queue IS NOT NULL
            AND (
                SELECT mine.queue
                FROM queue_settings AS mine
                WHERE
                    mine.queue = queues.queue
                    AND (
                        mine.paused_at IS NOT NULL
                            OR mine.key_concurrency IS NOT NULL
                            OR mine.key_rate_limit IS NOT NULL
                            OR mine.concurrency_limit IS NOT NULL
                            AND mine.concurrency_limit <= (
                                SELECT count(*) AS count_1
                                FROM task_leases AS lease
                                WHERE lease.queue = mine.queue
                            )
                            OR (
                                strftime(
                                    :strftime_1,
                                    (
                                        CAST(
                                            strftime(
                                                :strftime_2,
                                                substr(mine.rate_full_at, :substr_1, :substr_2)
                                            ) AS INTEGER
                                        ) * :param_3 + CAST(
                                            substr(mine.rate_full_at, :substr_3, :substr_4) AS INTEGER
                                        ) + CAST(
                                            round(
                                                (
                                                    -(
                                                        mine.rate_seconds - mine.rate_seconds / (
                                                            mine.rate_limit + 0.0
                                                        )
                                                    )
                                                ) * :param_4
                                            ) AS INTEGER
                                        )
                                    ) / 1000000,
                                    :strftime_3
                                ) || printf(
                                    :printf_1,
                                    (
                                        CAST(
                                            strftime(
                                                :strftime_2,
                                                substr(mine.rate_full_at, :substr_1, :substr_2)
                                            ) AS INTEGER
                                        ) * :param_3 + CAST(
                                            substr(mine.rate_full_at, :substr_3, :substr_4) AS INTEGER
                                        ) + CAST(
                                            round(
                                                (
                                                    -(
                                                        mine.rate_seconds - mine.rate_seconds / (
                                                            mine.rate_limit + 0.0
                                                        )
                                                    )
                                                ) * :param_4
                                            ) AS INTEGER
                                        )
                                    ) % 1000000
                                )
                            ) > :now
                    )
            ) IS NULL
        UNION ALL
        SELECT
            pairs.queue AS queue,
            (
                SELECT entry.priority
                FROM task_outbox AS entry
                WHERE
                    entry.queue = pairs.queue
                    AND entry.partition_key IS NULL
                    AND entry.priority < pairs.priority
                ORDER BY entry.priority DESC
                LIMIT :param_5
                OFFSET :param_6
            ) AS anon_1
        FROM pairs
        WHERE pairs.priority IS NOT NULL
    ),
    topics AS MATERIALIZED (
        SELECT topics_rows."key" AS ordinal, topics_rows.value AS topic
        FROM json_each(:topics) AS topics_rows
    ),
    oldest AS (
        SELECT
            open_queues.queue AS queue,
            due.partition_key AS partition_key,
            min(due.available_at) AS first,
            count(*) AS entries
        FROM (
            SELECT queues.queue AS queue, '' AS "after", NULL AS upto, 0 AS ordinal
            FROM queues
            WHERE
                queues.queue IS NOT NULL
                AND (
                    SELECT mine.queue
                    FROM queue_settings AS mine
                    WHERE
                        mine.queue = queues.queue
                        AND (
                            mine.paused_at IS NOT NULL
                                OR mine.key_concurrency IS NOT NULL
                                OR mine.key_rate_limit IS NOT NULL
                                OR mine.concurrency_limit IS NOT NULL
                                AND mine.concurrency_limit <= (
                                    SELECT count(*) AS count_2
                                    FROM task_leases AS lease
                                    WHERE lease.queue = mine.queue
                                )
                                OR (
                                    strftime(
                                        :strftime_4,
                                        (
                                            CAST(
                                                strftime(
                                                    :strftime_5,
                                                    substr(mine.rate_full_at, :substr_5, :substr_6)
                                                ) AS INTEGER
                                            ) * :param_7 + CAST(
                                                substr(mine.rate_full_at, :substr_7, :substr_8) AS INTEGER
                                            ) + CAST(
                                                round(
                                                    (
                                                        -(
                                                            mine.rate_seconds - mine.rate_seconds / (
                                                                mine.rate_limit + 0.0
                                                            )
                                                        )
                                                    ) * :param_8
                                                ) AS INTEGER
                                            )
                                        ) / 1000000,
                                        :strftime_6
                                    ) || printf(
                                        :printf_2,
                                        (
                                            CAST(
                                                strftime(
                                                    :strftime_5,
                                                    substr(mine.rate_full_at, :substr_5, :substr_6)
                                                ) AS INTEGER
                                            ) * :param_7 + CAST(
                                                substr(mine.rate_full_at, :substr_7, :substr_8) AS INTEGER
                                            ) + CAST(
                                                round(
                                                    (
                                                        -(
                                                            mine.rate_seconds - mine.rate_seconds / (
                                                                mine.rate_limit + 0.0
                                                            )
                                                        )
                                                    ) * :param_8
                                                ) AS INTEGER
                                            )
                                        ) % 1000000
                                    )
                                ) > :now
                        )
                ) IS NULL
                AND (
                    SELECT keyed_due.id
                    FROM task_outbox AS keyed_due
                    WHERE
                        keyed_due.queue = queues.queue
                        AND keyed_due.partition_key IS NOT NULL
                        AND keyed_due.available_at <= :now
                    ORDER BY keyed_due.available_at
                    LIMIT :param_9
                    OFFSET :param_10
                ) IS NOT NULL
        ) AS open_queues
        JOIN task_outbox AS due ON due.id IN (
            SELECT due_entry.id
            FROM task_outbox AS due_entry
            WHERE
                due_entry.queue = open_queues.queue
                AND due_entry.partition_key IS NOT NULL
                AND due_entry.available_at <= :now
            ORDER BY due_entry.available_at, due_entry.id
            LIMIT 32
            OFFSET :param_11
        )
        GROUP BY open_queues.queue, due.partition_key
    ),
    keys(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
        SELECT
            crowded_queues.ordinal AS place,
            crowded_queues.queue AS queue,
            crowded_queues.upto AS upto,
            head.task_execution_id AS task_execution_id,
            head.partition_key AS partition_key,
            head.available_at AS available_at,
            head.topic AS topic,
            1 AS n
        FROM (
            SELECT queues.queue AS queue, '' AS "after", NULL AS upto, 0 AS ordinal
            FROM queues
            WHERE
                queues.queue IS NOT NULL
                AND (
                    SELECT mine.queue
                    FROM queue_settings AS mine
                    WHERE
                        mine.queue = queues.queue
                        AND (
                            mine.paused_at IS NOT NULL
                                OR mine.key_concurrency IS NOT NULL
                                OR mine.key_rate_limit IS NOT NULL
                                OR mine.concurrency_limit IS NOT NULL
                                AND mine.concurrency_limit <= (
                                    SELECT count(*) AS count_3
                                    FROM task_leases AS lease
                                    WHERE lease.queue = mine.queue
                                )
                                OR (
                                    strftime(
                                        :strftime_7,
                                        (
                                            CAST(
                                                strftime(
                                                    :strftime_8,
                                                    substr(mine.rate_full_at, :substr_9, :substr_10)
                                                ) AS INTEGER
                                            ) * :param_16 + CAST(
                                                substr(mine.rate_full_at, :substr_11, :substr_12) AS INTEGER
                                            ) + CAST(
                                                round(
                                                    (
                                                        -(
                                                            mine.rate_seconds - mine.rate_seconds / (
                                                                mine.rate_limit + 0.0
                                                            )
                                                        )
                                                    ) * :param_17
                                                ) AS INTEGER
                                            )
                                        ) / 1000000,
                                        :strftime_9
                                    ) || printf(
                                        :printf_3,
                                        (
                                            CAST(
                                                strftime(
                                                    :strftime_8,
                                                    substr(mine.rate_full_at, :substr_9, :substr_10)
                                                ) AS INTEGER
                                            ) * :param_16 + CAST(
                                                substr(mine.rate_full_at, :substr_11, :substr_12) AS INTEGER
                                            ) + CAST(
                                                round(
                                                    (
                                                        -(
                                                            mine.rate_seconds - mine.rate_seconds / (
                                                                mine.rate_limit + 0.0
                                                            )
                                                        )
                                                    ) * :param_17
                                                ) AS INTEGER
                                            )
                                        ) % 1000000
                                    )
                                ) > :now
                        )
                ) IS NULL
                AND (
                    SELECT keyed_due.id
                    FROM task_outbox AS keyed_due
                    WHERE
                        keyed_due.queue = queues.queue
                        AND keyed_due.partition_key IS NOT NULL
                        AND keyed_due.available_at <= :now
                    ORDER BY keyed_due.available_at
                    LIMIT :param_18
                    OFFSET 31
                ) IS NOT NULL
        ) AS crowded_queues
        JOIN task_outbox AS head ON head.id = (
            SELECT head_entry.id
            FROM task_outbox AS head_entry
            WHERE
                head_entry.queue = crowded_queues.queue
                AND head_entry.partition_key > crowded_queues."after"
            ORDER BY head_entry.partition_key, head_entry.priority DESC, head_entry.position
            LIMIT :param_19
            OFFSET :param_20
        )
        WHERE crowded_queues.upto IS NULL OR head.partition_key <= crowded_queues.upto
        UNION ALL
        SELECT
            keys.place AS place,
            keys.queue AS queue,
            keys.upto AS upto,
            following.task_execution_id AS task_execution_id,
            following.partition_key AS partition_key,
            following.available_at AS available_at,
            following.topic AS topic,
            keys.n + 1 AS anon_2
        FROM keys
        JOIN task_outbox AS following ON following.id = (
            SELECT following_entry.id
            FROM task_outbox AS following_entry
            WHERE following_entry.queue = keys.queue AND following_entry.partition_key > keys.partition_key
            ORDER BY following_entry.partition_key, following_entry.priority DESC, following_entry.position
            LIMIT :param_21
            OFFSET :param_22
        )
        WHERE keys.n < 1000 AND (keys.upto IS NULL OR following.partition_key <= keys.upto)
    )
SELECT
    (
        EXISTS (
            SELECT pairs.queue
            FROM pairs
            WHERE EXISTS (
                SELECT entry_due.id
                FROM task_outbox AS entry_due
                WHERE
                    entry_due.partition_key IS NULL
                    AND entry_due.queue = pairs.queue
                    AND entry_due.priority = pairs.priority
                    AND entry_due.available_at <= :now
                    AND (
                        :any_topic = 1
                            OR (
                                EXISTS (
                                    SELECT topics.topic
                                    FROM topics
                                    WHERE
                                        entry_due.topic = topics.topic
                                        OR substr(topics.topic, length(topics.topic), 1) = '*'
                                        AND substr(entry_due.topic, 1, length(topics.topic) - 1) = substr(
                                            topics.topic,
                                            1,
                                            length(topics.topic) - 1
                                        )
                                )
                            )
                    )
                ORDER BY entry_due.available_at, entry_due.id
            )
        )
    )
        OR (
            EXISTS (
                SELECT due_keys.n
                FROM (
                    SELECT
                        0 AS place,
                        oldest.queue AS queue,
                        head.task_execution_id AS task_execution_id,
                        head.partition_key AS partition_key,
                        head.available_at AS available_at,
                        head.topic AS topic,
                        row_number() OVER (ORDER BY oldest.first, oldest.partition_key) AS n,
                        oldest.entries AS entries
                    FROM oldest
                    JOIN task_outbox AS head ON head.id = (
                        SELECT head_entry.id
                        FROM task_outbox AS head_entry
                        WHERE
                            head_entry.queue = oldest.queue
                            AND head_entry.partition_key = oldest.partition_key
                        ORDER BY head_entry.priority DESC, head_entry.position
                        LIMIT :param_12
                        OFFSET :param_13
                    )
                ) AS due_keys
                WHERE
                    due_keys.available_at <= :now
                    AND (
                        :any_topic = 1
                            OR (
                                EXISTS (
                                    SELECT topics.topic
                                    FROM topics
                                    WHERE
                                        due_keys.topic = topics.topic
                                        OR substr(topics.topic, length(topics.topic), 1) = '*'
                                        AND substr(due_keys.topic, 1, length(topics.topic) - 1) = substr(
                                            topics.topic,
                                            1,
                                            length(topics.topic) - 1
                                        )
                                )
                            )
                    )
                    AND (
                        SELECT claims.queue
                        FROM partition_claims AS claims
                        WHERE claims.queue = due_keys.queue AND claims.partition_key = due_keys.partition_key
                    ) IS NULL
                LIMIT :param_14
                OFFSET :param_15
            )
        )
        OR (
            EXISTS (
                SELECT keys.n
                FROM keys
                WHERE
                    keys.available_at <= :now
                    AND (
                        :any_topic = 1
                            OR (
                                EXISTS (
                                    SELECT topics.topic
                                    FROM topics
                                    WHERE
                                        keys.topic = topics.topic
                                        OR substr(topics.topic, length(topics.topic), 1) = '*'
                                        AND substr(keys.topic, 1, length(topics.topic) - 1) = substr(
                                            topics.topic,
                                            1,
                                            length(topics.topic) - 1
                                        )
                                )
                            )
                    )
                    AND (
                        SELECT claims.queue
                        FROM partition_claims AS claims
                        WHERE claims.queue = keys.queue AND claims.partition_key = keys.partition_key
                    ) IS NULL
                    OR keys.n = 1000
                LIMIT :param_23
                OFFSET :param_24
            )
        ) AS due,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT :param_25
        OFFSET :param_26
    ) IS NOT NULL AS by_key
