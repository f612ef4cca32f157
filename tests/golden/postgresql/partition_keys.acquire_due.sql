WITH
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
    oldest AS (
        SELECT
            given.queue AS queue,
            due.partition_key AS partition_key,
            min(due.available_at) AS first,
            count(*) AS entries
        FROM given
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
                due_entry.queue = given.queue
                AND due_entry.partition_key IS NOT NULL
                AND due_entry.available_at <= (SELECT clock.now FROM clock)
            ORDER BY due_entry.available_at, due_entry.id
            LIMIT %(budget)s::INTEGER
        ) AS due ON true
        GROUP BY given.queue, due.partition_key
    ),
    hop AS MATERIALIZED (
        SELECT
            due_keys.task_execution_id AS id,
            due_keys.queue AS queue,
            due_keys.partition_key AS partition_key,
            due_keys.place AS place,
            due_keys.n AS n,
            due_keys.entries AS entries,
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
        FROM (/* due.due_keys-1: param_1 */) AS due_keys
    ),
    won AS (
        INSERT INTO partition_claims (queue, partition_key, task_execution_id, held)
        SELECT locked.queue AS queue, locked.partition_key AS partition_key, locked.id AS id, false AS anon_1
        FROM (/* partition_keys.locked-1 */) AS locked
        ORDER BY locked.queue, locked.partition_key
        ON CONFLICT DO NOTHING
        RETURNING partition_claims.task_execution_id AS id, partition_claims.held AS won
    )
SELECT hop.id, hop.queue, hop.partition_key, hop.place, hop.n, hop.entries, hop.free, won.won
FROM hop
LEFT OUTER JOIN won ON won.id = hop.id
