WITH
    given AS (
        SELECT batch.id AS id, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
    ),
    wanted AS MATERIALIZED (
        SELECT
            "both".scope AS scope,
            "both".key AS key,
            "both".id AS id,
            row_number() OVER (PARTITION BY "both".scope, "both".key ORDER BY "both".id) AS nth
        FROM (
            SELECT
                idempotency_keys.scope AS scope,
                idempotency_keys.key AS key,
                idempotency_keys.task_execution_id AS id
            FROM idempotency_keys
            WHERE
                idempotency_keys.task_execution_id = any(array((SELECT given.id FROM given)))
                AND idempotency_keys.until_finished
            UNION ALL
            SELECT
                dead_letters.task_name AS task_name,
                dead_letters.lost_key AS lost_key,
                dead_letters.task_execution_id AS task_execution_id
            FROM dead_letters
            WHERE
                dead_letters.task_execution_id = any(array((SELECT given.id FROM given)))
                AND dead_letters.lost_key IS NOT NULL
        ) AS "both"
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    locked AS (
        INSERT INTO idempotency_keys (scope, key, task_execution_id, until_finished, created_at)
        SELECT
            wanted.scope AS scope,
            wanted.key AS key,
            wanted.id AS id,
            true AS anon_1,
            (SELECT clock.now FROM clock) AS anon_2
        FROM wanted
        WHERE wanted.nth = 1
        ORDER BY wanted.scope, wanted.key
        ON CONFLICT (scope, key) DO UPDATE SET key = idempotency_keys.key
        RETURNING idempotency_keys.task_execution_id AS id
    )
SELECT locked.id
FROM locked
