-- subscriber
SELECT
    substr(:pipeline_execution_id, 1, 28) || printf(:printf_1, row_number() OVER (ORDER BY found.task_name)) AS id,
    :pipeline_execution_id AS pipeline_execution_id,
    found.task_name,
    found.queue,
    found.priority,
    found.max_attempts,
    found.lease_seconds,
    found.timeout_seconds,
    found.on_dead_letter,
    found.parameter
FROM (/* fanout.found-1 */) AS found
WHERE found.nth = 1
ORDER BY found.task_name;

-- accepted
WITH subscriber AS MATERIALIZED (
    SELECT
        subscriber_rows."key" AS ordinal,
        json_extract(subscriber_rows.value, '$[0]') AS id,
        json_extract(subscriber_rows.value, '$[1]') AS task_name,
        json_extract(subscriber_rows.value, '$[2]') AS parameter
    FROM json_each(:subscriber) AS subscriber_rows
)
INSERT INTO inbox_messages (consumer, source, message_id, expires_at)
SELECT
    subscriber.task_name,
    '',
    :idempotency_key AS anon_1,
    strftime(
        :strftime_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(604800.0 * :param_2) AS INTEGER)
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(604800.0 * :param_2) AS INTEGER)
        ) % 1000000
    ) AS anon_2
FROM subscriber
WHERE
    subscriber.parameter IS NULL
    AND (SELECT count(subscriber.id) AS count_1 FROM subscriber) <= :most_subscribers
ORDER BY subscriber.task_name
ON CONFLICT DO NOTHING
RETURNING consumer AS task_name;

-- message
WITH accepted AS MATERIALIZED (
    SELECT accepted_rows."key" AS ordinal, accepted_rows.value AS task_name
    FROM json_each(:accepted) AS accepted_rows
)
INSERT INTO relay_messages (relay, slot, event_id, topic, partition_key, headers, payload, created_at)
SELECT
    substr(accepted.task_name, 7) AS substr_1,
    :slot AS anon_1,
    :pipeline_execution_id AS anon_2,
    :topic AS anon_3,
    :relay_key AS anon_4,
    :headers AS anon_5,
    :payload AS anon_6,
    :now AS anon_7
FROM accepted
ORDER BY accepted.task_name;

-- accepted_id
WITH
    subscriber AS MATERIALIZED (
        SELECT
            subscriber_rows."key" AS ordinal,
            json_extract(subscriber_rows.value, '$[0]') AS id,
            json_extract(subscriber_rows.value, '$[1]') AS task_name
        FROM json_each(:subscriber) AS subscriber_rows
    ),
    accepted AS MATERIALIZED (
        SELECT accepted_rows."key" AS ordinal, accepted_rows.value AS task_name
        FROM json_each(:accepted) AS accepted_rows
    )
SELECT subscriber.id, accepted.task_name AS accepted_by
FROM subscriber, accepted
WHERE subscriber.task_name = accepted.task_name
