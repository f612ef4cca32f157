WITH RECURSIVE
    floors AS (
        SELECT
            batch.queue AS queue,
            batch.priority AS priority,
            batch.below AS below,
            batch.since AS since,
            batch.ordinal AS ordinal
        FROM unnest(
            %(floors_queue)s::TEXT[],
            %(floors_priority)s::SMALLINT[],
            %(floors_below)s::SMALLINT[],
            %(floors_since)s::TIMESTAMP WITH TIME ZONE[]
        ) WITH ORDINALITY AS batch(queue, priority, below, since, ordinal)
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    hops_of_pairs(queue, priority, below, since) AS (
        SELECT
            starts.queue AS queue,
            starts.priority AS priority,
            starts.below AS below,
            starts.since AS since
        FROM (
            SELECT
                floors.queue AS queue,
                floors.priority AS priority,
                floors.below AS below,
                coalesce(floors.since, '-infinity') AS since
            FROM floors
            UNION ALL
            SELECT
                queues.queue AS queue,
                CAST(32767 AS SMALLINT) AS "32767",
                CAST(-32768 AS SMALLINT) AS "-32768",
                '-infinity'
            FROM queues
            WHERE
                queues.queue IS NOT NULL
                AND queues.queue != all(array((SELECT floors.queue FROM floors)))
        ) AS starts
        UNION ALL
        SELECT
            hops_of_pairs.queue AS queue,
            (
                SELECT entry.priority
                FROM task_outbox AS entry
                WHERE
                    entry.queue = hops_of_pairs.queue
                    AND entry.partition_key IS NULL
                    AND entry.priority < hops_of_pairs.priority
                    AND entry.priority > hops_of_pairs.below
                ORDER BY entry.priority DESC
                LIMIT %(param_1)s::INTEGER
            ) AS anon_1,
            hops_of_pairs.below AS below,
            '-infinity'
        FROM hops_of_pairs
        WHERE hops_of_pairs.priority IS NOT NULL
    ),
    pairs AS (
        SELECT hops_of_pairs.queue AS queue, hops_of_pairs.priority AS priority, hops_of_pairs.since AS since
        FROM hops_of_pairs
        WHERE hops_of_pairs.priority < CAST(32767 AS SMALLINT)
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    topics AS (
        SELECT batch.topic AS topic, batch.ordinal AS ordinal
        FROM unnest(%(topics_topic)s::TEXT[]) WITH ORDINALITY AS batch(topic, ordinal)
    ),
    picked AS MATERIALIZED (/* claim.picked-1 */),
    taken AS (
        DELETE FROM task_outbox
        WHERE ctid = any(array((SELECT picked.ctid FROM picked)))
        RETURNING
            task_outbox.task_execution_id AS id,
            task_outbox.available_at,
            task_outbox.id AS entry_id,
            (
                SELECT keyed.id
                FROM task_outbox AS keyed
                WHERE keyed.partition_key IS NOT NULL
                LIMIT %(param_2)s::INTEGER
            ) IS NOT NULL
                OR (
                    SELECT mine.queue
                    FROM queue_settings AS mine
                    WHERE
                        mine.concurrency_limit IS NOT NULL
                        OR mine.rate_limit IS NOT NULL
                        OR mine.key_concurrency IS NOT NULL
                        OR mine.key_rate_limit IS NOT NULL
                    LIMIT %(param_3)s::INTEGER
                ) IS NOT NULL AS besides,
            pg_stat_get_dead_tuples(task_outbox.tableoid) > 2000 AS crowded,
            false AS many
    ),
    claimed AS (
        UPDATE task_executions
        SET
            status=CASE
                WHEN (task_executions.expires_at <= (SELECT clock.now FROM clock)) THEN 'Cancelled'
                ELSE 'Running'
            END,
            lease_token=(
                task_executions.lease_token + CASE
                    WHEN (task_executions.expires_at <= (SELECT clock.now FROM clock)) THEN 0
                    ELSE 1
                END
            ),
            worker_id=CASE
                WHEN (task_executions.expires_at <= (SELECT clock.now FROM clock)) THEN NULL
                ELSE %(worker_id)s::UUID
            END,
            retry_at=NULL,
            first_started_at=CASE
                WHEN (task_executions.expires_at <= (SELECT clock.now FROM clock)) THEN task_executions.first_started_at
                ELSE coalesce(task_executions.first_started_at, (SELECT clock.now FROM clock))
            END,
            started_at=CASE
                WHEN (task_executions.expires_at <= (SELECT clock.now FROM clock)) THEN task_executions.started_at
                ELSE (SELECT clock.now FROM clock)
            END,
            completed_at=CASE
                WHEN (task_executions.expires_at <= (SELECT clock.now FROM clock)) THEN (
                    SELECT clock.now FROM clock
                )
                ELSE NULL
            END,
            updated_at=(SELECT clock.now FROM clock)
        WHERE
            task_executions.id = any(array((SELECT taken.id FROM taken)))
            AND task_executions.status = 'Ready'
        RETURNING
            task_executions.id,
            task_executions.pipeline_execution_id,
            task_executions.task_name,
            task_executions.queue,
            task_executions.priority,
            task_executions.topic,
            task_executions.partition_key,
            task_executions.args,
            task_executions.headers,
            task_executions.attempt,
            task_executions.max_attempts,
            task_executions.recovery_attempts,
            task_executions.timeout_seconds,
            task_executions.created_at,
            task_executions.first_started_at,
            task_executions.started_at,
            CASE
                WHEN (task_executions.status = 'Running') THEN task_executions.lease_token
                ELSE NULL
            END AS lease_token,
            coalesce(%(lease_seconds)s, task_executions.lease_seconds) AS lease_seconds,
            (SELECT clock.now FROM clock) + coalesce(%(lease_seconds)s, task_executions.lease_seconds) * interval '1 second' AS lease_expires_at,
            task_executions.expires_at
    ),
    lease AS (
        INSERT INTO task_leases (task_execution_id, queue, lease_token, worker_id, lease_expires_at, begun)
        SELECT
            claimed.id AS id,
            claimed.queue AS queue,
            claimed.lease_token AS lease_token,
            %(worker_id)s::UUID AS anon_2,
            claimed.lease_expires_at AS lease_expires_at,
            CASE WHEN (%(says_begin)s AND claimed.recovery_attempts >= 2) THEN false ELSE NULL END AS anon_3
        FROM claimed
        WHERE claimed.lease_token IS NOT NULL
        ON CONFLICT (task_execution_id) DO UPDATE SET queue = excluded.queue, lease_token = excluded.lease_token, worker_id = excluded.worker_id, lease_expires_at = excluded.lease_expires_at, begun = excluded.begun
    ),
    event AS (
        INSERT INTO execution_events (
            pipeline_execution_id,
            task_execution_id,
            event_type,
            event_data,
            worker_id,
            lease_token,
            created_at
        )
        SELECT
            claimed.pipeline_execution_id AS pipeline_execution_id,
            claimed.id AS id,
            CASE WHEN (claimed.lease_token IS NULL) THEN 'task_expired' ELSE 'task_claimed' END AS anon_4,
            CASE
                WHEN (claimed.lease_token IS NULL) THEN CAST(
                    jsonb_strip_nulls(jsonb_build_object('expires_at', claimed.expires_at)) AS TEXT
                )
                WHEN (%(lease_seconds)s IS NOT NULL) THEN CAST(
                    jsonb_strip_nulls(
                        jsonb_build_object(
                            'attempt',
                            claimed.attempt,
                            'lease_seconds',
                            CAST(%(lease_seconds)s AS DOUBLE PRECISION)
                        )
                    ) AS TEXT
                )
                ELSE coalesce('{"attempt": ' || CAST(claimed.attempt AS TEXT) || '}', '{}')
            END AS anon_5,
            %(worker_id)s::UUID AS anon_2,
            claimed.lease_token AS lease_token,
            (SELECT clock.now FROM clock) AS anon_6
        FROM claimed
    )
SELECT
    taken.id,
    taken.available_at,
    taken.entry_id,
    taken.besides,
    taken.crowded,
    taken.many,
    claimed.pipeline_execution_id,
    claimed.task_name,
    claimed.queue,
    claimed.priority,
    claimed.topic,
    claimed.partition_key,
    claimed.args,
    claimed.headers,
    claimed.attempt,
    claimed.max_attempts,
    claimed.recovery_attempts,
    claimed.timeout_seconds,
    claimed.created_at,
    claimed.first_started_at,
    claimed.started_at,
    claimed.lease_token,
    claimed.lease_seconds,
    claimed.lease_expires_at,
    claimed.expires_at
FROM taken
LEFT OUTER JOIN claimed ON claimed.id = taken.id
