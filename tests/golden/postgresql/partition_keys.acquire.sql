WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    topics AS (
        SELECT batch.topic AS topic, batch.ordinal AS ordinal
        FROM unnest(%(topics_topic)s::TEXT[]) WITH ORDINALITY AS batch(topic, ordinal)
    ),
    given AS (
        SELECT batch.queue AS queue, batch.after AS after, batch.upto AS upto, batch.ordinal AS ordinal
        FROM unnest(%(given_queue)s::TEXT[], %(given_after)s::TEXT[], %(given_upto)s::TEXT[]) WITH ORDINALITY AS batch(
            queue,
            after,
            upto,
            ordinal
        )
    ),
    keys(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
        SELECT
            given.ordinal AS place,
            given.queue AS queue,
            given.upto AS upto,
            head.task_execution_id AS task_execution_id,
            head.partition_key AS partition_key,
            head.available_at AS available_at,
            head.topic AS topic,
            1 AS n
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
            WHERE head_entry.queue = given.queue AND head_entry.partition_key > given.after
            ORDER BY head_entry.partition_key, head_entry.priority DESC, head_entry.position
            LIMIT %(param_1)s::INTEGER
        ) AS head ON true
        WHERE given.upto IS NULL OR head.partition_key <= given.upto
        UNION ALL
        SELECT
            keys.place AS place,
            keys.queue AS queue,
            keys.upto AS upto,
            following.task_execution_id AS task_execution_id,
            following.partition_key AS partition_key,
            following.available_at AS available_at,
            following.topic AS topic,
            keys.n + 1 AS anon_1
        FROM keys
        JOIN LATERAL (/* due.following-1: param_2 */) AS following ON true
        WHERE keys.n < %(budget)s::INTEGER AND (keys.upto IS NULL OR following.partition_key <= keys.upto)
    ),
    hop AS MATERIALIZED (
        SELECT
            keys.task_execution_id AS id,
            keys.queue AS queue,
            keys.partition_key AS partition_key,
            keys.place AS place,
            keys.n AS n,
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
                ) IS NULL AS free
        FROM keys
    ),
    won AS (
        INSERT INTO partition_claims (queue, partition_key, task_execution_id, held)
        SELECT locked.queue AS queue, locked.partition_key AS partition_key, locked.id AS id, false AS anon_2
        FROM (/* partition_keys.locked-1 */) AS locked
        ORDER BY locked.queue, locked.partition_key
        ON CONFLICT DO NOTHING
        RETURNING partition_claims.task_execution_id AS id, partition_claims.held AS won
    )
SELECT hop.id, hop.queue, hop.partition_key, hop.place, hop.n, hop.free, won.won
FROM hop
LEFT OUTER JOIN won ON won.id = hop.id
