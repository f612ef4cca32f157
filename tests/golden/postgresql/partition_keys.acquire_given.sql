WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    topics AS (
        SELECT batch.topic AS topic, batch.ordinal AS ordinal
        FROM unnest(%(topics_topic)s::TEXT[]) WITH ORDINALITY AS batch(topic, ordinal)
    ),
    given AS (
        SELECT batch.queue AS queue, batch.partition_key AS partition_key, batch.ordinal AS ordinal
        FROM unnest(%(given_queue)s::TEXT[], %(given_partition_key)s::TEXT[]) WITH ORDINALITY AS batch(
            queue,
            partition_key,
            ordinal
        )
    ),
    hop AS MATERIALIZED (
        SELECT
            due_keys.task_execution_id AS id,
            due_keys.queue AS queue,
            due_keys.partition_key AS partition_key,
            due_keys.place AS place,
            due_keys.n AS n,
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
                ) IS NULL AS free
        FROM (
            SELECT
                0 AS place,
                given.queue AS queue,
                head.task_execution_id AS task_execution_id,
                head.partition_key AS partition_key,
                head.available_at AS available_at,
                head.topic AS topic,
                given.ordinal AS n
            FROM given
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
                WHERE head_entry.queue = given.queue AND head_entry.partition_key = given.partition_key
                ORDER BY head_entry.priority DESC, head_entry.position
                LIMIT %(param_1)s::INTEGER
            ) AS head ON true
        ) AS due_keys
    ),
    won AS (
        INSERT INTO partition_claims (queue, partition_key, task_execution_id, held)
        SELECT locked.queue AS queue, locked.partition_key AS partition_key, locked.id AS id, false AS anon_1
        FROM (
            SELECT unclaimed.queue AS queue, unclaimed.partition_key AS partition_key, unclaimed.id AS id
            FROM (
                SELECT turns.queue AS queue, turns.partition_key AS partition_key, turns.id AS id
                FROM (
                    SELECT
                        hop.queue AS queue,
                        hop.partition_key AS partition_key,
                        hop.id AS id,
                        hop.place AS place,
                        row_number() OVER (PARTITION BY hop.place ORDER BY hop.n) AS turn
                    FROM hop
                    WHERE hop.free
                ) AS turns
                ORDER BY turns.turn, turns.place
                LIMIT %(budget)s::INTEGER
            ) AS unclaimed
            WHERE pg_try_advisory_xact_lock(
                hashtextextended(concat_ws(chr(31), 'outboxq', unclaimed.queue, unclaimed.partition_key), 0)
            )
            LIMIT %(limit)s::BIGINT
        ) AS locked
        ORDER BY locked.queue, locked.partition_key
        ON CONFLICT DO NOTHING
        RETURNING partition_claims.task_execution_id AS id, partition_claims.held AS won
    )
SELECT hop.id, hop.queue, hop.partition_key, hop.place, hop.n, hop.free, won.won
FROM hop
LEFT OUTER JOIN won ON won.id = hop.id
