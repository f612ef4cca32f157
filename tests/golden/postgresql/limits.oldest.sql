WITH
    limited AS (
        SELECT CAST(%(queue)s::VARCHAR AS TEXT) AS queue,
        CAST(%(key_concurrency)s::INTEGER AS INTEGER) AS key_concurrency,
        CAST(%(blocked_after)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE) AS blocked_after,
        CAST(%(blocked_until)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE) AS blocked_until
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
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
            LIMIT %(budget)s::INTEGER
        ) AS due ON true
    ),
    topics AS (
        SELECT batch.topic AS topic, batch.ordinal AS ordinal
        FROM unnest(%(topics_topic)s::TEXT[]) WITH ORDINALITY AS batch(topic, ordinal)
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
    running AS MATERIALIZED (/* limits.running-1 */)
SELECT
    counted.looked_at,
    open_ones.id AS entry_id,
    open_ones.available_at,
    open_ones.partition_key,
    open_ones.is_concurrency,
    open_ones.running,
    open_ones.full_at
FROM (SELECT count(*) AS looked_at FROM due_entries) AS counted
LEFT OUTER JOIN (
    SELECT
        due_entries.id AS id,
        due_entries.priority AS priority,
        due_entries.available_at AS available_at,
        state.queue AS queue,
        state.partition_key AS partition_key,
        state.is_concurrency AS is_concurrency,
        state.running AS running,
        state.full_at AS full_at,
        state.free AS free
    FROM due_entries
    JOIN (
        SELECT
            due_keys.queue AS queue,
            due_keys.partition_key AS partition_key,
            substr(due_keys.partition_key, 1, 12) = 'concurrency:' AS is_concurrency,
            coalesce(running.tasks, 0) AS running,
            (
                SELECT key_rates.full_at
                FROM key_rates
                WHERE key_rates.queue = due_keys.queue AND key_rates.partition_key = due_keys.partition_key
            ) AS full_at,
            CASE WHEN (substr(due_keys.partition_key, 1, 12) = 'concurrency:') THEN coalesce(running.tasks, 0) < limited.key_concurrency ELSE (
                SELECT claims.queue
                FROM partition_claims AS claims
                WHERE claims.queue = due_keys.queue AND claims.partition_key = due_keys.partition_key
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
        JOIN limited ON due_keys.queue = limited.queue
        LEFT OUTER JOIN running ON running.queue = due_keys.queue
            AND running.partition_key = due_keys.partition_key
    ) AS state ON state.queue = due_entries.queue
        AND state.partition_key = due_entries.partition_key
    WHERE
        state.free
        AND (
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
        )
) AS open_ones ON true
ORDER BY CASE
    WHEN (open_ones.partition_key > CAST(%(after)s::VARCHAR AS TEXT)) THEN 0
    ELSE 1
END, open_ones.partition_key, open_ones.priority DESC, open_ones.available_at, open_ones.id
