WITH RECURSIVE
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    pairs(queue, priority) AS (
        SELECT
            queues.queue AS queue,
            (
                SELECT entry.priority
                FROM task_outbox AS entry
                WHERE entry.queue = queues.queue AND entry.partition_key IS NULL
                ORDER BY entry.priority DESC
                LIMIT %(param_1)s::INTEGER
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
                            OR mine.rate_full_at + (
                                -(mine.rate_seconds - mine.rate_seconds / CAST(mine.rate_limit AS NUMERIC))
                            ) * interval '1 second' > (SELECT clock.now FROM clock)
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
                LIMIT %(param_2)s::INTEGER
            ) AS anon_1
        FROM pairs
        WHERE pairs.priority IS NOT NULL
    ),
    topics AS (
        SELECT batch.topic AS topic, batch.ordinal AS ordinal
        FROM unnest(%(topics_topic)s::TEXT[]) WITH ORDINALITY AS batch(topic, ordinal)
    ),
    oldest AS (
        SELECT
            open_queues.queue AS queue,
            due.partition_key AS partition_key,
            min(due.available_at) AS first,
            count(*) AS entries
        FROM (
            SELECT queues.queue AS queue, '' AS after, NULL AS upto, 0 AS ordinal
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
                                OR mine.rate_full_at + (
                                    -(
                                        mine.rate_seconds - mine.rate_seconds / CAST(
                                            mine.rate_limit AS NUMERIC
                                        )
                                    )
                                ) * interval '1 second' > (SELECT clock.now FROM clock)
                        )
                ) IS NULL
                AND (
                    SELECT keyed_due.id
                    FROM task_outbox AS keyed_due
                    WHERE
                        keyed_due.queue = queues.queue
                        AND keyed_due.partition_key IS NOT NULL
                        AND keyed_due.available_at <= (SELECT clock.now FROM clock)
                    ORDER BY keyed_due.available_at
                    LIMIT %(param_3)s::INTEGER
                ) IS NOT NULL
        ) AS open_queues
        JOIN LATERAL (
            SELECT
                due_entry.id AS id,
                due_entry.task_execution_id AS task_execution_id,
                due_entry.queue AS queue,
                due_entry.priority AS priority,
                due_entry.partition_key AS partition_key,
                due_entry.position AS position,
                due_entry.topic AS topic,
                due_entry.available_at AS available_at,
                due_entry.expires_at AS expires_at,
                due_entry.created_at AS created_at
            FROM task_outbox AS due_entry
            WHERE
                due_entry.queue = open_queues.queue
                AND due_entry.partition_key IS NOT NULL
                AND due_entry.available_at <= (SELECT clock.now FROM clock)
            ORDER BY due_entry.available_at, due_entry.id
            LIMIT 32
        ) AS due ON true
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
            SELECT queues.queue AS queue, '' AS after, NULL AS upto, 0 AS ordinal
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
                                OR mine.rate_full_at + (
                                    -(
                                        mine.rate_seconds - mine.rate_seconds / CAST(
                                            mine.rate_limit AS NUMERIC
                                        )
                                    )
                                ) * interval '1 second' > (SELECT clock.now FROM clock)
                        )
                ) IS NULL
                AND (
                    SELECT keyed_due.id
                    FROM task_outbox AS keyed_due
                    WHERE
                        keyed_due.queue = queues.queue
                        AND keyed_due.partition_key IS NOT NULL
                        AND keyed_due.available_at <= (SELECT clock.now FROM clock)
                    ORDER BY keyed_due.available_at
                    LIMIT %(param_6)s::INTEGER
                    OFFSET 31
                ) IS NOT NULL
        ) AS crowded_queues
        JOIN LATERAL (
            SELECT
                head_entry.id AS id,
                head_entry.task_execution_id AS task_execution_id,
                head_entry.queue AS queue,
                head_entry.priority AS priority,
                head_entry.partition_key AS partition_key,
                head_entry.position AS position,
                head_entry.topic AS topic,
                head_entry.available_at AS available_at,
                head_entry.expires_at AS expires_at,
                head_entry.created_at AS created_at
            FROM task_outbox AS head_entry
            WHERE head_entry.queue = crowded_queues.queue AND head_entry.partition_key > crowded_queues.after
            ORDER BY head_entry.partition_key, head_entry.priority DESC, head_entry.position
            LIMIT %(param_7)s::INTEGER
        ) AS head ON true
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
        JOIN LATERAL (
            SELECT
                following_entry.id AS id,
                following_entry.task_execution_id AS task_execution_id,
                following_entry.queue AS queue,
                following_entry.priority AS priority,
                following_entry.partition_key AS partition_key,
                following_entry.position AS position,
                following_entry.topic AS topic,
                following_entry.available_at AS available_at,
                following_entry.expires_at AS expires_at,
                following_entry.created_at AS created_at
            FROM task_outbox AS following_entry
            WHERE following_entry.queue = keys.queue AND following_entry.partition_key > keys.partition_key
            ORDER BY following_entry.partition_key, following_entry.priority DESC, following_entry.position
            LIMIT %(param_8)s::INTEGER
        ) AS following ON true
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
                    AND entry_due.available_at <= (SELECT clock.now FROM clock)
                    AND (
                        %(any_topic)s
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
                    JOIN LATERAL (
                        SELECT
                            head_entry.id AS id,
                            head_entry.task_execution_id AS task_execution_id,
                            head_entry.queue AS queue,
                            head_entry.priority AS priority,
                            head_entry.partition_key AS partition_key,
                            head_entry.position AS position,
                            head_entry.topic AS topic,
                            head_entry.available_at AS available_at,
                            head_entry.expires_at AS expires_at,
                            head_entry.created_at AS created_at
                        FROM task_outbox AS head_entry
                        WHERE
                            head_entry.queue = oldest.queue
                            AND head_entry.partition_key = oldest.partition_key
                        ORDER BY head_entry.priority DESC, head_entry.position
                        LIMIT %(param_4)s::INTEGER
                    ) AS head ON true
                ) AS due_keys
                WHERE
                    due_keys.available_at <= (SELECT clock.now FROM clock)
                    AND (
                        %(any_topic)s
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
                LIMIT %(param_5)s::INTEGER
            )
        )
        OR (
            EXISTS (
                SELECT keys.n
                FROM keys
                WHERE
                    keys.available_at <= (SELECT clock.now FROM clock)
                    AND (
                        %(any_topic)s
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
                LIMIT %(param_9)s::INTEGER
            )
        ) AS due,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT %(param_10)s::INTEGER
    ) IS NOT NULL AS by_key
