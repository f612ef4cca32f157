WITH RECURSIVE
    queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_1
            FROM task_outbox AS entry
            WHERE entry.queue > queues.queue AND entry.partition_key IS NULL
        ) AS anon_1
        FROM queues
        WHERE queues.queue IS NOT NULL
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
            ) AS anon_2
        FROM pairs
        WHERE pairs.priority IS NOT NULL
    ),
    topics AS (
        SELECT batch.topic AS topic, batch.ordinal AS ordinal
        FROM unnest(%(topics_topic)s::TEXT[]) WITH ORDINALITY AS batch(topic, ordinal)
    ),
    keyed_queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NOT NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_2
            FROM task_outbox AS entry
            WHERE entry.queue > keyed_queues.queue AND entry.partition_key IS NOT NULL
        ) AS anon_3
        FROM keyed_queues
        WHERE keyed_queues.queue IS NOT NULL
    ),
    oldest AS (
        SELECT
            open_queues.queue AS queue,
            due.partition_key AS partition_key,
            min(due.available_at) AS first,
            count(*) AS entries
        FROM (
            SELECT keyed_queues.queue AS queue, '' AS after, NULL AS upto, 0 AS ordinal
            FROM keyed_queues
            WHERE
                keyed_queues.queue IS NOT NULL
                AND (
                    SELECT mine.queue
                    FROM queue_settings AS mine
                    WHERE
                        mine.queue = keyed_queues.queue
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
                        keyed_due.queue = keyed_queues.queue
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
            SELECT keyed_queues.queue AS queue, '' AS after, NULL AS upto, 0 AS ordinal
            FROM keyed_queues
            WHERE
                keyed_queues.queue IS NOT NULL
                AND (
                    SELECT mine.queue
                    FROM queue_settings AS mine
                    WHERE
                        mine.queue = keyed_queues.queue
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
                        keyed_due.queue = keyed_queues.queue
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
            keys.n + 1 AS anon_4
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
    ),
    limited AS MATERIALIZED (
        SELECT
            queue_settings.queue AS queue,
            coalesce(queue_settings.key_concurrency, 1) AS key_concurrency,
            (SELECT clock.now FROM clock) + (
                queue_settings.key_rate_seconds - queue_settings.key_rate_seconds / CAST(
                    queue_settings.key_rate_limit AS NUMERIC
                )
            ) * interval '1 second' AS blocked_after,
            (SELECT clock.now FROM clock) + queue_settings.key_rate_seconds * 2 * interval '1 second' AS blocked_until,
            queue_settings.key_rate_seconds - queue_settings.key_rate_seconds / CAST(
                queue_settings.key_rate_limit AS NUMERIC
            ) AS room
        FROM queue_settings
        WHERE
            (queue_settings.key_concurrency IS NOT NULL OR queue_settings.key_rate_limit IS NOT NULL)
            AND queue_settings.paused_at IS NULL
            AND (
                queue_settings.concurrency_limit IS NULL
                    OR queue_settings.concurrency_limit > (
                        SELECT count(*) AS count_4
                        FROM task_leases AS lease
                        WHERE lease.queue = queue_settings.queue
                    )
            )
            AND (
                queue_settings.rate_full_at + (
                    -(
                        queue_settings.rate_seconds - queue_settings.rate_seconds / CAST(
                            queue_settings.rate_limit AS NUMERIC
                        )
                    )
                ) * interval '1 second' IS NULL
                    OR queue_settings.rate_full_at + (
                        -(
                            queue_settings.rate_seconds - queue_settings.rate_seconds / CAST(
                                queue_settings.rate_limit AS NUMERIC
                            )
                        )
                    ) * interval '1 second' <= (SELECT clock.now FROM clock)
            )
    ),
    due_entries AS MATERIALIZED (
        SELECT
            due.queue AS queue,
            due.partition_key AS partition_key,
            due.id AS id,
            due.priority AS priority,
            due.available_at AS available_at,
            due.topic AS topic
        FROM limited
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
                due_entry.queue = limited.queue
                AND due_entry.partition_key IS NOT NULL
                AND due_entry.available_at <= (SELECT clock.now FROM clock)
            ORDER BY due_entry.available_at, due_entry.id
            LIMIT 1000
        ) AS due ON true
    ),
    due_keys AS (
        SELECT DISTINCT due_entries.queue AS queue, due_entries.partition_key AS partition_key
        FROM due_entries
        WHERE
            %(any_topic)s
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
    running AS MATERIALIZED (
        SELECT at_work.queue AS queue, at_work.partition_key AS partition_key, count(*) AS tasks
        FROM task_executions AS at_work
        WHERE
            at_work.id = any(
                array(
                    (
                        SELECT leased.task_execution_id
                        FROM (
                            SELECT task_leases.task_execution_id AS task_execution_id
                            FROM task_leases
                            JOIN limited ON limited.queue = task_leases.queue
                        ) AS leased
                    )
                )
            )
            AND substr(at_work.partition_key, 1, 12) = 'concurrency:'
        GROUP BY at_work.queue, at_work.partition_key
    ),
    hopped(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
        SELECT
            range.ordinal AS place,
            range.queue AS queue,
            range.upto AS upto,
            head.task_execution_id AS task_execution_id,
            head.partition_key AS partition_key,
            head.available_at AS available_at,
            head.topic AS topic,
            1 AS n
        FROM (
            SELECT deep.queue AS queue, '' AS after, NULL AS upto, 0 AS ordinal
            FROM (
                SELECT due_entries.queue AS queue
                FROM due_entries
                GROUP BY due_entries.queue
                HAVING count(*) >= 1000
            ) AS deep
        ) AS range
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
            WHERE head_entry.queue = range.queue AND head_entry.partition_key > range.after
            ORDER BY head_entry.partition_key, head_entry.priority DESC, head_entry.position
            LIMIT %(param_10)s::INTEGER
        ) AS head ON true
        WHERE range.upto IS NULL OR head.partition_key <= range.upto
        UNION ALL
        SELECT
            hopped.place AS place,
            hopped.queue AS queue,
            hopped.upto AS upto,
            following.task_execution_id AS task_execution_id,
            following.partition_key AS partition_key,
            following.available_at AS available_at,
            following.topic AS topic,
            hopped.n + 1 AS anon_5
        FROM hopped
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
            WHERE
                following_entry.queue = hopped.queue
                AND following_entry.partition_key > hopped.partition_key
            ORDER BY following_entry.partition_key, following_entry.priority DESC, following_entry.position
            LIMIT %(param_11)s::INTEGER
        ) AS following ON true
        WHERE hopped.n < 1000 AND (hopped.upto IS NULL OR following.partition_key <= hopped.upto)
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
        )
        OR (
            EXISTS (
                SELECT limited.queue
                FROM limited
                WHERE EXISTS (
                    SELECT plain_due.id
                    FROM task_outbox AS plain_due
                    WHERE
                        plain_due.queue = limited.queue
                        AND plain_due.partition_key IS NULL
                        AND plain_due.available_at <= (SELECT clock.now FROM clock)
                        AND (
                            %(any_topic)s
                                OR (
                                    EXISTS (
                                        SELECT topics.topic
                                        FROM topics
                                        WHERE
                                            plain_due.topic = topics.topic
                                            OR substr(topics.topic, length(topics.topic), 1) = '*'
                                            AND substr(plain_due.topic, 1, length(topics.topic) - 1) = substr(
                                                topics.topic,
                                                1,
                                                length(topics.topic) - 1
                                            )
                                    )
                                )
                        )
                )
            )
        )
        OR (
            EXISTS (
                SELECT near.queue
                FROM (
                    SELECT
                        due_keys.queue AS queue,
                        due_keys.partition_key AS partition_key,
                        substr(due_keys.partition_key, 1, 12) = 'concurrency:' AS is_concurrency,
                        coalesce(running.tasks, 0) AS running,
                        (
                            SELECT key_rates.full_at
                            FROM key_rates
                            WHERE
                                key_rates.queue = due_keys.queue
                                AND key_rates.partition_key = due_keys.partition_key
                        ) AS full_at,
                        CASE WHEN (substr(due_keys.partition_key, 1, 12) = 'concurrency:') THEN coalesce(
                            running.tasks,
                            0
                        ) < limited.key_concurrency ELSE (
                            SELECT claims.queue
                            FROM partition_claims AS claims
                            WHERE
                                claims.queue = due_keys.queue
                                AND claims.partition_key = due_keys.partition_key
                        ) IS NULL END
                            AND NOT coalesce(
                                (
                                    SELECT key_rates.full_at
                                    FROM key_rates
                                    WHERE
                                        key_rates.queue = due_keys.queue
                                        AND key_rates.partition_key = due_keys.partition_key
                                ) > limited.blocked_after
                                    AND (
                                        SELECT key_rates.full_at
                                        FROM key_rates
                                        WHERE
                                            key_rates.queue = due_keys.queue
                                            AND key_rates.partition_key = due_keys.partition_key
                                    ) <= limited.blocked_until,
                                false
                            ) AS free
                    FROM due_keys
                    JOIN limited ON limited.queue = due_keys.queue
                    LEFT OUTER JOIN running ON running.queue = due_keys.queue
                        AND running.partition_key = due_keys.partition_key
                ) AS near
                WHERE near.free
            )
        )
        OR (
            EXISTS (
                SELECT far.queue
                FROM (
                    SELECT
                        hopped.queue AS queue,
                        hopped.partition_key AS partition_key,
                        substr(hopped.partition_key, 1, 12) = 'concurrency:' AS is_concurrency,
                        coalesce(running.tasks, 0) AS running,
                        (
                            SELECT key_rates.full_at
                            FROM key_rates
                            WHERE
                                key_rates.queue = hopped.queue
                                AND key_rates.partition_key = hopped.partition_key
                        ) AS full_at,
                        CASE WHEN (substr(hopped.partition_key, 1, 12) = 'concurrency:') THEN coalesce(
                            running.tasks,
                            0
                        ) < limited.key_concurrency ELSE hopped.available_at <= (SELECT clock.now FROM clock)
                            AND (
                                %(any_topic)s
                                    OR (
                                        EXISTS (
                                            SELECT topics.topic
                                            FROM topics
                                            WHERE
                                                hopped.topic = topics.topic
                                                OR substr(topics.topic, length(topics.topic), 1) = '*'
                                                AND substr(hopped.topic, 1, length(topics.topic) - 1) = substr(
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
                                WHERE
                                    claims.queue = hopped.queue
                                    AND claims.partition_key = hopped.partition_key
                            ) IS NULL
                            END
                            AND NOT coalesce(
                                (
                                    SELECT key_rates.full_at
                                    FROM key_rates
                                    WHERE
                                        key_rates.queue = hopped.queue
                                        AND key_rates.partition_key = hopped.partition_key
                                ) > limited.blocked_after
                                    AND (
                                        SELECT key_rates.full_at
                                        FROM key_rates
                                        WHERE
                                            key_rates.queue = hopped.queue
                                            AND key_rates.partition_key = hopped.partition_key
                                    ) <= limited.blocked_until,
                                false
                            ) AS free,
                        hopped.n AS n
                    FROM hopped
                    JOIN limited ON limited.queue = hopped.queue
                    LEFT OUTER JOIN running ON running.queue = hopped.queue
                        AND running.partition_key = hopped.partition_key
                ) AS far
                WHERE far.free AND NOT far.is_concurrency OR far.n = 1000
            )
        )
        OR (
            EXISTS (
                SELECT candidate.id
                FROM (
                    SELECT
                        hopped.queue AS queue,
                        hopped.partition_key AS partition_key,
                        substr(hopped.partition_key, 1, 12) = 'concurrency:' AS is_concurrency,
                        coalesce(running.tasks, 0) AS running,
                        (
                            SELECT key_rates.full_at
                            FROM key_rates
                            WHERE
                                key_rates.queue = hopped.queue
                                AND key_rates.partition_key = hopped.partition_key
                        ) AS full_at,
                        CASE WHEN (substr(hopped.partition_key, 1, 12) = 'concurrency:') THEN coalesce(
                            running.tasks,
                            0
                        ) < limited.key_concurrency ELSE hopped.available_at <= (SELECT clock.now FROM clock)
                            AND (
                                %(any_topic)s
                                    OR (
                                        EXISTS (
                                            SELECT topics.topic
                                            FROM topics
                                            WHERE
                                                hopped.topic = topics.topic
                                                OR substr(topics.topic, length(topics.topic), 1) = '*'
                                                AND substr(hopped.topic, 1, length(topics.topic) - 1) = substr(
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
                                WHERE
                                    claims.queue = hopped.queue
                                    AND claims.partition_key = hopped.partition_key
                            ) IS NULL
                            END
                            AND NOT coalesce(
                                (
                                    SELECT key_rates.full_at
                                    FROM key_rates
                                    WHERE
                                        key_rates.queue = hopped.queue
                                        AND key_rates.partition_key = hopped.partition_key
                                ) > limited.blocked_after
                                    AND (
                                        SELECT key_rates.full_at
                                        FROM key_rates
                                        WHERE
                                            key_rates.queue = hopped.queue
                                            AND key_rates.partition_key = hopped.partition_key
                                    ) <= limited.blocked_until,
                                false
                            ) AS free,
                        hopped.n AS n
                    FROM hopped
                    JOIN limited ON limited.queue = hopped.queue
                    LEFT OUTER JOIN running ON running.queue = hopped.queue
                        AND running.partition_key = hopped.partition_key
                ) AS far
                JOIN LATERAL (
                    SELECT
                        near_ones.id AS id,
                        near_ones.task_execution_id AS task_execution_id,
                        near_ones.queue AS queue,
                        near_ones.priority AS priority,
                        near_ones.partition_key AS partition_key,
                        near_ones.position AS position,
                        near_ones.topic AS topic,
                        near_ones.available_at AS available_at,
                        near_ones.expires_at AS expires_at,
                        near_ones.created_at AS created_at
                    FROM (
                        SELECT
                            candidate_entry.id AS id,
                            candidate_entry.task_execution_id AS task_execution_id,
                            candidate_entry.queue AS queue,
                            candidate_entry.priority AS priority,
                            candidate_entry.partition_key AS partition_key,
                            candidate_entry.position AS position,
                            candidate_entry.topic AS topic,
                            candidate_entry.available_at AS available_at,
                            candidate_entry.expires_at AS expires_at,
                            candidate_entry.created_at AS created_at
                        FROM task_outbox AS candidate_entry
                        WHERE
                            candidate_entry.queue = far.queue
                            AND candidate_entry.partition_key = far.partition_key
                        ORDER BY candidate_entry.priority DESC, candidate_entry.position
                        LIMIT 1000
                    ) AS near_ones
                    WHERE
                        near_ones.available_at <= (SELECT clock.now FROM clock)
                        AND (
                            %(any_topic)s
                                OR (
                                    EXISTS (
                                        SELECT topics.topic
                                        FROM topics
                                        WHERE
                                            near_ones.topic = topics.topic
                                            OR substr(topics.topic, length(topics.topic), 1) = '*'
                                            AND substr(near_ones.topic, 1, length(topics.topic) - 1) = substr(
                                                topics.topic,
                                                1,
                                                length(topics.topic) - 1
                                            )
                                    )
                                )
                        )
                    ORDER BY near_ones.priority DESC, near_ones.position
                    LIMIT %(param_12)s::INTEGER
                ) AS candidate ON true
                WHERE far.free AND far.is_concurrency
            )
        ) AS due,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT %(param_13)s::INTEGER
    ) IS NOT NULL AS by_key
