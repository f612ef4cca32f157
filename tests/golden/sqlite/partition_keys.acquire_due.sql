-- hop
WITH
    topics AS MATERIALIZED (
        SELECT topics_rows."key" AS ordinal, topics_rows.value AS topic
        FROM json_each(:topics) AS topics_rows
    ),
    given AS MATERIALIZED (
        SELECT given_rows."key" AS ordinal, given_rows.value AS queue
        FROM json_each(:given) AS given_rows
    ),
    oldest AS (
        SELECT
            given.queue AS queue,
            due.partition_key AS partition_key,
            min(due.available_at) AS first,
            count(*) AS entries
        FROM given
        JOIN task_outbox AS due ON due.id IN (
            SELECT due_entry.id
            FROM task_outbox AS due_entry
            WHERE
                due_entry.queue = given.queue
                AND due_entry.partition_key IS NOT NULL
                AND due_entry.available_at <= :now
            ORDER BY due_entry.available_at, due_entry.id
            LIMIT :budget
            OFFSET :param_1
        )
        GROUP BY given.queue, due.partition_key
    )
SELECT
    due_keys.task_execution_id AS id,
    due_keys.queue,
    due_keys.partition_key,
    due_keys.place,
    due_keys.n,
    due_keys.entries,
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
        ) IS NULL AS free
FROM (/* due.due_keys-1: param_2, param_3 */) AS due_keys;

-- won
WITH hop AS MATERIALIZED (
    SELECT
        hop_rows."key" AS ordinal,
        json_extract(hop_rows.value, '$[0]') AS id,
        json_extract(hop_rows.value, '$[1]') AS queue,
        json_extract(hop_rows.value, '$[2]') AS partition_key,
        json_extract(hop_rows.value, '$[3]') AS place,
        json_extract(hop_rows.value, '$[4]') AS n,
        json_extract(hop_rows.value, '$[5]') AS free
    FROM json_each(:hop) AS hop_rows
)
INSERT INTO partition_claims (queue, partition_key, task_execution_id, held)
SELECT locked.queue, locked.partition_key, locked.id, 0 AS anon_1
FROM (/* partition_keys.locked-1: param_1, param_2 */) AS locked
ORDER BY locked.queue, locked.partition_key
ON CONFLICT DO NOTHING
RETURNING task_execution_id AS id, held AS won
